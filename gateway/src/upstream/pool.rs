//! Child processes that several clients share: one for each era of an upstream.

use std::{
    sync::Mutex,
    time::{Duration, Instant},
};

use weir_mcp::{Era, Message};

use super::{lock, stdio::Process};

/// The shared processes of one upstream.
#[derive(Default)]
pub(super) struct Shared {
    legacy: Mutex<Option<Member>>,
    modern: Mutex<Option<Member>>,
}

/// A shared process and what it said when it was opened.
#[derive(Clone)]
pub(super) struct Member {
    pub(super) process: Process,
    pub(super) answer: Message,
    used: Instant,
}

impl Shared {
    /// The process for `era`, if it still runs.
    pub(super) fn get(&self, era: Era) -> Option<Member> {
        let mut slot = lock(self.slot(era));
        let member = slot.as_mut().filter(|member| member.process.alive())?;
        member.used = Instant::now();
        Some(member.clone())
    }

    /// Keeps a process for the next client.
    pub(super) fn put(&self, era: Era, process: Process, answer: Message) {
        process.serve_together();
        *lock(self.slot(era)) = Some(Member { process, answer, used: Instant::now() });
    }

    /// Ends the processes that nobody holds and nobody asked for in the last `idle`.
    pub(super) async fn reap(&self, idle: Duration) {
        for era in [Era::Legacy, Era::Modern] {
            let over = {
                let mut slot = lock(self.slot(era));
                let rests = slot
                    .as_ref()
                    .is_some_and(|m| m.used.elapsed() >= idle && !m.process.busy() && !m.process.is_held());
                if rests { slot.take() } else { None }
            };
            if let Some(member) = over {
                member.process.stop().await;
            }
        }
    }

    /// Ends them all.
    pub(super) async fn stop(&self) {
        self.reap(Duration::ZERO).await;
        for era in [Era::Legacy, Era::Modern] {
            let busy = lock(self.slot(era)).take();
            if let Some(member) = busy {
                member.process.stop().await;
            }
        }
    }

    fn slot(&self, era: Era) -> &Mutex<Option<Member>> {
        match era {
            Era::Legacy => &self.legacy,
            Era::Modern => &self.modern,
        }
    }
}
