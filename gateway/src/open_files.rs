//! How many files Weir may have open: sockets and pipes, of clients, upstreams and children together.
//!
//! Systems give programs few (the soft limit, often 1024) and let those have more that ask (the hard limit). Weir asks, and
//! gives its children what it was given itself: some programs go through every number up to the limit.

use std::sync::OnceLock;

use rustix::process::{Pid, Resource, Rlimit, getrlimit, setrlimit};

use crate::quota::Shares;

/// More is never needed, and some systems allow a thousand times as much.
const ENOUGH: u64 = 1 << 20;

/// The limits that Weir was started with, once it has raised them.
static GIVEN: OnceLock<Rlimit> = OnceLock::new();

/// Raises the soft limit as far as the system lets it; gives what holds then, none if there is no limit.
pub fn raise() -> Option<u64> {
    let given = getrlimit(Resource::Nofile);
    let most = given.maximum.unwrap_or(ENOUGH).min(ENOUGH);
    let raised = Rlimit { current: Some(most), ..given };
    if given.current.is_some_and(|current| current < most) && setrlimit(Resource::Nofile, raised).is_ok() {
        // Raised once in a process.
        let _ = GIVEN.set(given);
    }
    getrlimit(Resource::Nofile).current
}

/// Gives a child that was just started the limits that Weir was started with.
pub fn give_back(child: Pid) {
    #[cfg(target_os = "linux")]
    if let Some(given) = GIVEN.get() {
        // It may have ended already.
        let _ = rustix::process::prlimit(Some(child), Resource::Nofile, *given);
    }
    #[cfg(not(target_os = "linux"))]
    let _ = child;
}

/// How many connections there may be with so many open files. Three eighths are left for upstreams and children. One
/// address or one upstream must not have all of the few that there are.
pub fn connections(wanted: Shares, files: Option<u64>) -> Shares {
    let files = files.and_then(|files| usize::try_from(files).ok()).unwrap_or(usize::MAX);
    let at_most = |wanted: usize, part: usize| wanted.min(part).max(1);
    let total = at_most(wanted.total, files / 8 * 5);
    let principal = if total < wanted.total { at_most(wanted.principal, total / 2) } else { wanted.principal };
    Shares { total, principal, upstream: at_most(wanted.upstream, files / 4) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_left_for_upstreams() {
        let wanted = Shares { total: 1000, principal: 400, upstream: 800 };
        assert_eq!(connections(wanted, None), wanted);
        assert_eq!(connections(wanted, Some(4000)), wanted);
        // What one machine is often given: 10,000 clients that rest and 1,000 streams find room.
        let many = Shares { total: 16_384, principal: 4096, upstream: 8192 };
        assert_eq!(connections(many, Some(20_000)), Shares { total: 12_500, principal: 4096, upstream: 5000 });
        assert_eq!(connections(wanted, Some(1024)), Shares { total: 640, principal: 320, upstream: 256 });
        assert_eq!(connections(wanted, Some(0)), Shares { total: 1, principal: 1, upstream: 1 });
    }
}
