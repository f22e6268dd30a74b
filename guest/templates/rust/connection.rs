//! A policy about connections: Streamable HTTP, first in the modern era, then in the legacy era.

use weir_policy::{Attempt, Connection, Era, Outcome, Step, Transport, Upstream};

struct Policy;

impl Connection for Policy {
    fn next(to: Upstream, history: Vec<Attempt>) -> Step {
        match history.last() {
            None => Step::attempt(Transport::Http, to.required_era.unwrap_or(Era::Modern)),
            Some(Attempt { era: Era::Modern, outcome: Outcome::Unsupported(_), .. }) if to.required_era.is_none() => {
                Step::attempt(Transport::Http, Era::Legacy)
            }
            Some(last) if matches!(last.outcome, Outcome::Unauthorized(_)) && !last.credential => {
                Step::authorize(last.transport, last.era)
            }
            Some(_) => Step::stop(format!("{} cannot be reached over Streamable HTTP; look at its address", to.name)),
        }
    }
}

weir_policy::export_connection!(Policy);
