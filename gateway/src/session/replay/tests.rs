#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use bytes::{Bytes, BytesMut};

use super::*;

const VERSION: &str = "2025-11-25";

fn streams(limit: usize) -> (Arc<ReplayMemory>, Arc<ReplayStreams>) {
    let memory = memory(limit, limit);
    let streams = of(&memory, "ada");
    (memory, streams)
}

fn memory(total: usize, principal: usize) -> Arc<ReplayMemory> {
    ReplayMemory::new(Shares { total, principal, upstream: 0 })
}

fn of(memory: &Arc<ReplayMemory>, principal: &str) -> Arc<ReplayStreams> {
    Arc::new(ReplayStreams::new(memory, &principal.into(), None).unwrap())
}

/// An answer of which these events went out, still going on.
fn begun(streams: &Arc<ReplayStreams>, events: &[&str]) -> ReplayWriter {
    let mut writer = ReplayWriter::answer(streams, VERSION);
    writer.begin(|| None);
    for event in events {
        write(&mut writer, event.as_bytes());
    }
    writer
}

/// Writes a message; gives what goes out.
fn write(writer: &mut ReplayWriter, data: &[u8]) -> BytesMut {
    let mut out = BytesMut::new();
    writer.write(Bytes::copy_from_slice(data), &mut out);
    out
}

fn id(writer: &mut ReplayWriter) -> String {
    let primed = writer.begin(|| None);
    let text = std::str::from_utf8(&primed).unwrap();
    text.lines().next().unwrap().strip_prefix("id: ").unwrap().to_owned()
}

/// What somebody who comes back with this id is given, as far as it is there.
fn after(streams: &ReplayStreams, id: &str) -> Option<String> {
    match streams.find(id)? {
        ResumePoint::Own(place) => Some(text(&streams.said_after(place))),
        ResumePoint::Answer(replay) => Some(text(&replay.all_there_is())),
    }
}

fn text(events: &[ReplayedEvent]) -> String {
    let data = |event: &ReplayedEvent| String::from_utf8(event.data.to_vec()).unwrap();
    events.iter().map(data).collect::<Vec<_>>().join(" ")
}

#[tokio::test]
async fn what_was_missed_and_what_still_comes() {
    let (_memory, streams) = streams(1 << 20);
    let mut writer = begun(&streams, &["a", "b"]);
    let start = id(&mut writer);
    let (stream, _) = start.split_once('-').unwrap();
    let Some(ResumePoint::Answer(mut replay)) = streams.find(&format!("{stream}-1")) else { panic!("it is kept") };
    assert!(writer.is_taken_over());
    let second = ReplayedEvent { id: format!("{stream}-2"), data: Bytes::from_static(b"b") };
    assert_eq!(replay.next().await.unwrap(), second);
    let rest = tokio::spawn(async move {
        let mut all = Vec::new();
        while let Some(event) = replay.next().await {
            all.push(event);
        }
        text(&all)
    });
    tokio::task::yield_now().await;
    write(&mut writer, b"c");
    write(&mut writer, b"dd");
    drop(writer);
    assert_eq!(rest.await.unwrap(), "c dd");
    assert_eq!(after(&streams, &start).unwrap(), "a b c dd", "and again, after its end");
}

#[tokio::test]
async fn an_id_leads_to_its_own_stream_or_nowhere() {
    let (memory, streams) = streams(1 << 20);
    let other = of(&memory, "ada");
    let (mut first, mut second) = (begun(&streams, &["a"]), begun(&streams, &["b"]));
    let mut third = begun(&other, &["c"]);
    assert_eq!(after(&streams, &id(&mut first)).unwrap(), "a");
    assert_eq!(after(&streams, &id(&mut second)).unwrap(), "b");
    assert_eq!(after(&other, &id(&mut third)).unwrap(), "c");
    assert_eq!(after(&streams, &id(&mut third)), None, "another session's");
    for odd in ["", "-", "0-0", "zz-1", "+1-1", "1-+1", "1--1", "99999999999-1", "1-99999999999999999999", "stub/0"] {
        assert_eq!(after(&streams, odd), None, "{odd}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_newest_reader_is_the_only_one() {
    let (_memory, streams) = streams(1 << 20);
    let mut writer = begun(&streams, &[]);
    let id = id(&mut writer);
    let Some(ResumePoint::Answer(mut old)) = streams.find(&id) else { panic!("it is kept") };
    let waits = tokio::spawn(async move { old.next().await });
    tokio::task::yield_now().await;
    let Some(ResumePoint::Answer(mut new)) = streams.find(&id) else { panic!("it is kept") };
    assert_eq!(waits.await.unwrap(), None);
    write(&mut writer, b"a");
    assert!(new.next().await.is_some());
}

#[tokio::test]
async fn the_own_stream_goes_on_where_it_was() {
    let (_memory, streams) = streams(1 << 20);
    let mut first = ReplayWriter::own(&streams, VERSION);
    assert_eq!(first.begin(|| None), format!("id: {:08x}-0\nretry: 1000\ndata: \n\n", streams.first));
    write(&mut first, b"a");
    drop(first);
    let place = |place: u64| format!("{:08x}-{place}", streams.first);
    assert_eq!(after(&streams, &place(0)).unwrap(), "a");
    let mut second = ReplayWriter::own(&streams, VERSION);
    assert_eq!(id(&mut second), place(1));
    write(&mut second, b"b");
    assert_eq!(after(&streams, &place(0)).unwrap(), "a b");
    assert_eq!(after(&streams, &place(1)).unwrap(), "b");
    assert!(second.is_taken_over());
}

#[tokio::test]
async fn older_clients_get_ids_and_no_event_without_data() {
    let (_memory, streams) = streams(1 << 20);
    let mut writer = ReplayWriter::answer(&streams, "2025-06-18");
    assert!(writer.begin(|| None).is_empty());
    assert!(write(&mut writer, b"a").starts_with(b"id: "));
}

#[tokio::test]
async fn what_comes_instead_of_an_answer_is_for_who_comes_back() {
    let (_memory, streams) = streams(1 << 20);
    let mut writer = begun(&streams, &["a"]);
    let id = id(&mut writer);
    writer.instead(b"sorry");
    assert_eq!(after(&streams, &id).unwrap(), "a sorry");
}

#[tokio::test]
async fn a_session_has_a_share_and_no_more() {
    let limit = 1 << 20;
    let (memory, streams) = streams(limit);
    let mut writer = begun(&streams, &[]);
    let id = id(&mut writer);
    for number in 0..5000 {
        write(&mut writer, number.to_string().as_bytes());
        assert!(streams.used.session.load(Ordering::Relaxed) <= limit / SHARE);
    }
    let kept = after(&streams, &id).unwrap();
    assert!(kept.ends_with(" 4998 4999") && !kept.starts_with("0 "), "the newest are there");
    assert!(writer.is_whole());
    write(&mut writer, &[b'x'; 100_000]);
    assert!(!writer.is_whole(), "the last event is larger than the share");
    writer.instead(b"too large");
    assert!(after(&streams, &id).unwrap().ends_with("too large"));
    drop(writer);
    drop(streams);
    assert_eq!(memory.used.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn all_sessions_together_are_bounded_and_what_has_ended_goes_first() {
    let limit = 256 * 1024;
    let memory = memory(limit, limit);
    let sessions: Vec<_> = (0..64).map(|_| of(&memory, "ada")).collect();
    let mut running = begun(&sessions[0], &["first"]);
    let id = id(&mut running);
    for round in 0..16 {
        for streams in &sessions {
            begun(streams, &[&"x".repeat(1000)]);
            assert!(memory.used.load(Ordering::Relaxed) <= limit, "round {round}");
        }
    }
    assert_eq!(after(&sessions[0], &id).unwrap(), "first");
}

#[tokio::test]
async fn a_principal_crowds_out_itself_and_nobody_else() {
    let (total, share) = (1 << 20, 64 * 1024);
    let memory = memory(total, share);
    let ada = of(&memory, "ada");
    let mut hers = begun(&ada, &["first"]);
    let id = id(&mut hers);
    // Within the share of each session, which is as large here.
    let eves: Vec<_> = (0..32).map(|_| of(&memory, "eve")).collect();
    for streams in eves.iter().chain(&eves) {
        begun(streams, &[&"x".repeat(8000)]);
        assert!(eves[0].used.principal.load(Ordering::Relaxed) <= share);
    }
    assert_eq!(after(&ada, &id).unwrap(), "first");
    drop(eves);
    of(&memory, "eva");
    assert_eq!(memory.principals.lock().len(), 2, "who has nothing takes no room");
}

#[tokio::test]
async fn there_are_only_so_many_streams_of_a_session() {
    let (memory, streams) = streams(1 << 20);
    let mut keepers: Vec<_> = (0..=MAX_STREAMS).map(|_| begun(&streams, &["a"])).collect();
    assert_eq!(streams.answers.lock().logs.len(), MAX_STREAMS);
    let forgotten = id(&mut keepers[0]);
    assert_eq!(after(&streams, &forgotten), None);
    let before = memory.used.load(Ordering::Relaxed);
    write(&mut keepers[0], &[b'x'; 5000]);
    assert_eq!(memory.used.load(Ordering::Relaxed), before, "nobody could find it");
    let left: Vec<_> = keepers.iter().map(ReplayWriter::leave).collect();
    assert_eq!(left.iter().flatten().count(), MAX_LEFT);
    drop(left);
    assert!(keepers[1].leave().is_some());
}
