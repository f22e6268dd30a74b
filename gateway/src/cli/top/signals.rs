//! Signals that want this process to end or to stop.
//!
//! The screen looks for them between keys. Where it does not get to it, the process ends all the same: crossterm reads a
//! terminal that is gone without end, and a terminal that takes nothing holds up whoever writes to it.

use std::{
    io::{self, IsTerminal},
    sync::atomic::{AtomicU8, Ordering},
    time::Duration,
};

use rustix::process::Signal;
use tokio::{
    signal::unix::{SignalKind, signal},
    task::JoinSet,
    time::sleep,
};

use super::terminal_screen;

/// How long the screen may take to see one.
const PATIENCE: Duration = Duration::from_secs(1);

/// The one that came last; 0 if the screen has seen it.
static LAST: AtomicU8 = AtomicU8::new(0);

/// The one that came last and was not taken before.
pub(super) fn take() -> Option<Signal> {
    Signal::from_named_raw(LAST.swap(0, Ordering::Relaxed).into())
}

/// Forgets one that was for somebody else.
pub(super) fn forget(signal: Signal) {
    let _ = LAST.compare_exchange(number(signal), 0, Ordering::Relaxed, Ordering::Relaxed);
}

/// What a process ends with that a signal has ended, as shells say it.
pub(super) fn exit_code(signal: Signal) -> u8 {
    128_u8.saturating_add(number(signal))
}

fn number(signal: Signal) -> u8 {
    u8::try_from(signal.as_raw()).unwrap_or_default()
}

/// Notes signals, and that the terminal is gone, which not every terminal tells by a signal. Does not end.
pub(super) async fn watch() {
    let mut signals = JoinSet::new();
    for wanted in [Signal::TERM, Signal::HUP, Signal::INT, Signal::QUIT, Signal::TSTP] {
        let Ok(mut stream) = signal(SignalKind::from_raw(wanted.as_raw())) else { continue };
        signals.spawn(async move {
            while stream.recv().await.is_some() {
                note(wanted).await;
            }
        });
    }
    loop {
        sleep(PATIENCE).await;
        if !io::stdin().is_terminal() {
            note(Signal::HUP).await;
        }
    }
}

async fn note(signal: Signal) {
    LAST.store(number(signal), Ordering::Relaxed);
    // A key may be meant by the others, and a command that has the terminal may be meant.
    if [Signal::TERM, Signal::HUP, Signal::QUIT].contains(&signal) {
        sleep(PATIENCE).await;
        if LAST.load(Ordering::Relaxed) == number(signal) {
            terminal_screen::abandon();
            std::process::exit(exit_code(signal).into());
        }
    }
}
