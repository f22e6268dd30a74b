//! The way of a call: the one place where catalog, policy, credentials and upstream meet.
//!
//! [`Relay::request`] finds out where a request goes ([`route`]), drives one [`weir_flow::Call`] there ([`drive`]) and
//! hands back an [`Answer`] whose body is pulled by the server as it comes ([`delivery`]). What Weir answers by itself
//! on the aggregate is in [`aggregate`]; how legacy sessions begin and end in [`legacy`], and how they hear in [`listen`];
//! how clients and upstreams of different eras meet in [`translate`].

mod aggregate;
mod answer;
mod crossing;
mod deadline;
mod delivery;
mod drive;
mod legacy;
mod listen;
mod pending;
mod route;
mod sign_in;
mod tasks;
mod translate;
mod watch;

use std::sync::Arc;

use weir_mcp::{Era, Field, Kind, Message};

use crate::{
    caller::Caller,
    catalog::Catalog,
    config::Limits,
    http::{HeaderName, HeaderValue},
    observe::Outcome,
    session::{Endpoint, Owner, Session, Sessions},
    upstream::Upstream,
};

pub use answer::{Answer, Body, CLIENT_GONE, Record};
pub use delivery::{Delivery, Heard, Keep, RETRY};
pub use pending::{Gathered, Pending};

/// Everything that calls go through.
pub struct Relay {
    catalog: Arc<Catalog>,
    sessions: Arc<Sessions>,
    /// The legacy sessions of modern clients.
    pool: translate::Pool,
    /// Calls at legacy upstreams that wait for their clients' answers.
    parked: Arc<translate::Parked>,
    /// Long lists that are translated time and again.
    repeated: Arc<translate::Repeated>,
    /// How callers sign in; none where there is no page for it.
    desk: Option<sign_in::Desk>,
}

/// One message from a client, with what goes along.
#[derive(Clone)]
pub struct Inquiry {
    /// The client's era.
    pub era: Era,
    /// Where it came in.
    pub endpoint: Endpoint,
    /// Who sent it; none where everybody may.
    pub caller: Option<Arc<Caller>>,
    /// Whose share it uses of what all share.
    pub principal: Arc<str>,
    /// The message.
    pub message: Message,
    /// `MCP-Protocol-Version`, where the client sent it.
    pub version: Option<HeaderValue>,
    /// Headers that may travel.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// The client's session, in the legacy era.
    pub session: Option<Arc<Session>>,
}

impl Inquiry {
    /// The first message of a legacy client.
    pub(in crate::relay) fn introducing(owner: &Owner, endpoint: Endpoint, initialize: &Message) -> Self {
        let (caller, message, principal) = (owner.caller.clone(), initialize.clone(), Arc::clone(owner.principal()));
        Self {
            era: Era::Legacy,
            endpoint,
            caller,
            principal,
            message,
            version: None,
            headers: Vec::new(),
            session: None,
        }
    }
}

impl Relay {
    /// A relay over these offers and sessions.
    #[must_use]
    pub fn new(catalog: Arc<Catalog>, sessions: Arc<Sessions>, limits: &Limits) -> Self {
        Self {
            catalog,
            sessions,
            pool: translate::Pool::new(limits.pooled_sessions),
            parked: Arc::new(translate::Parked::new(limits.pending_inputs)),
            repeated: Arc::default(),
            desk: None,
        }
    }

    /// The offers.
    #[must_use]
    pub fn catalog(&self) -> &Arc<Catalog> {
        &self.catalog
    }

    /// The sessions.
    #[must_use]
    pub fn sessions(&self) -> &Arc<Sessions> {
        &self.sessions
    }

    /// Takes a request to its answer.
    pub async fn request(self: &Arc<Self>, inquiry: &Inquiry, record: &mut Record) -> Answer {
        if inquiry.message.raw(Field::RequestState).is_some()
            && let Some(came) = Box::pin(self.signed_in(inquiry)).await
        {
            return match came {
                // Boxed: it happens once in a login, and every call would have room for it.
                Ok(call) => Box::pin(self.route_and_drive(&call, record)).await,
                Err(answer) => answer,
            };
        }
        self.route_and_drive(inquiry, record).await
    }

    async fn route_and_drive(self: &Arc<Self>, inquiry: &Inquiry, record: &mut Record) -> Answer {
        match self.route(inquiry).await {
            route::Route::Answered(answer) => answer,
            route::Route::Unknown(answer) => {
                record.fail(Outcome::Refused, "nothing is called so");
                answer
            }
            route::Route::Upstream(leg) => {
                record.upstream = Some(Arc::clone(self.upstream(leg.upstream)));
                self.drive(inquiry, leg, record).await
            }
        }
    }

    /// Passes on a notification or the answer to an upstream's question; there is nothing to wait for.
    pub async fn pass(self: &Arc<Self>, inquiry: Inquiry) {
        let message = &inquiry.message;
        if let Some(session) = &inquiry.session {
            // What a call at an upstream without sessions waits for.
            if matches!(message.kind(), Kind::Response | Kind::Error) && session.settle(message) {
                return;
            }
        }
        for leg in self.route_message(&inquiry) {
            let run = leg.run.clone();
            self.pass_on(&inquiry, leg).await;
            // The only message that concerns a request which runs: from here on nothing of it is for the client.
            if let Some(run) = run {
                run.cancel();
            }
        }
    }

    fn upstream(&self, place: usize) -> &Arc<Upstream> {
        // Places come from the catalog, which has one for each upstream.
        &self.catalog.upstreams()[place]
    }
}
