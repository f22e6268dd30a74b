//! The life of a call and of a connection, as state machines that know neither sockets nor clocks.
//!
//! [`facts`] is what a policy is told and what it may answer. [`Negotiation`] reaches an upstream by asking a `connection`
//! policy step by step; [`mod@call`] takes one request to its answer. Both hold what no policy can change: the number of
//! attempts and their deadline, that nothing is repeated that may have run unless it is safe to repeat, that nothing is
//! repeated once the first byte of an answer is out, and that a credential goes to the origin it was given for.
//!
//! [`Backoff`] says how long to pause between tries, with all of Weir's numbers for it. [`Breaker`] and [`RetryBudget`]
//! hold for all calls to one upstream: whether they go at all, and how often they may be sent again. [`Supervision`] brings
//! together what is known of an upstream.
//!
//! Time comes in as the [`Duration`](std::time::Duration) since the machine was made; nothing here reads a clock.

pub mod backoff;
pub mod breaker;
pub mod budget;
pub mod call;
pub mod facts;
pub mod grant;
pub mod supervision;
pub mod walk;

pub use backoff::Backoff;
pub use breaker::{Admission, Breaker, BreakerEvent, BreakerState, Verdict};
pub use budget::RetryBudget;
pub use call::{CallStep, Failure, SendError};
pub use grant::{Origin, may_travel};
pub use supervision::{Observation, Supervision, Transition, Trouble, UpstreamState};
pub use walk::{Negotiation, NegotiationStep};
