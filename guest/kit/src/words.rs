//! Small things that every policy says: names of transports and eras, and steps without ceremony.

use std::fmt;

use crate::{Attempt, Candidate, Era, Step, Transport};

impl Step {
    /// Try this, with the credential in hand if there is one.
    pub fn attempt(transport: Transport, era: Era) -> Self {
        Self::Attempt(Candidate::new(transport, era))
    }

    /// Get a new credential, then try this.
    pub fn authorize(transport: Transport, era: Era) -> Self {
        Self::Authorize(Candidate::new(transport, era))
    }

    /// Give up, and say why and what to do.
    pub fn stop(message: impl Into<String>) -> Self {
        Self::Stop(message.into())
    }
}

impl Candidate {
    /// This transport and this era.
    pub const fn new(transport: Transport, era: Era) -> Self {
        Self { transport, era, extensions: Vec::new() }
    }
}

impl Attempt {
    /// What was tried.
    pub const fn candidate(&self) -> Candidate {
        Candidate::new(self.transport, self.era)
    }
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Http => "Streamable HTTP",
            Self::Sse => "HTTP+SSE",
            Self::Stdio => "stdio",
        })
    }
}

impl fmt::Display for Era {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Modern => "modern",
            Self::Legacy => "legacy",
        })
    }
}
