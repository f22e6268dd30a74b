//! Whether a call may go to its upstream now: how many run, how often they come, and whether it is always the same one.
//!
//! [`Admission::call`] is asked once for each call, when it is known where it goes. What it takes is given back when the
//! [`CallPermit`] is dropped, which is as long-lived as the call: its stream, if the answer is one, is part of it.

mod day;
mod elsewhere;
mod rates;

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use crate::{
    config::{ItemPattern, Limits, own_shares},
    counters::LIMITS_REACHED,
    quota::{OwnShare, Permit, Quota, Reached, Scope, Shares},
    rate::RateLimiter,
};

use day::DayIsOver;
pub use day::{DayBudget, day};
pub use elsewhere::LimitUsage;
use elsewhere::{RateKind, TakenRates};
use rates::Rates;

/// The limits of calls.
pub struct Admission {
    calls: Arc<Quota>,
    tool_calls: Option<Arc<Quota>>,
    /// The tools of which another number may run.
    own_tool_calls: Vec<(ItemPattern, OwnShare)>,
    streams: Arc<Quota>,
    requests: Rates<Arc<str>>,
    principal: Rates<Arc<str>>,
    upstream: Rates<Arc<str>>,
    tool: Rates<ItemPattern>,
    repeated: Option<Arc<RateLimiter>>,
    /// The same for calls that say they go on: who makes up a `requestState` is limited too.
    continued: Option<Arc<RateLimiter>>,
    budget: Arc<DayBudget>,
    taken: Arc<TakenRates>,
}

/// The keys below `limits` of rates.
const REQUESTS: RateKind = "principal.requests_per_minute";
const OF_PRINCIPAL: RateKind = "principal.calls_per_minute";
const OF_TOOL: RateKind = "tool.calls_per_minute";
const OF_UPSTREAM: RateKind = "upstream.calls_per_minute";

/// How many rounds of questions one call may take before its next rounds count as repetitions.
const ROUNDS: usize = 10;

/// One call on its way.
#[derive(Clone, Copy, Debug)]
pub struct AdmittedCall<'a> {
    /// Whose it is: what stands for its caller.
    pub principal: &'a Arc<str>,
    /// Where it goes.
    pub upstream: &'a str,
    /// The tool that it calls, as the upstream names it; none for other methods.
    pub tool: Option<&'a str>,
    /// The tool's arguments, if it has any.
    pub arguments: Option<&'a [u8]>,
    /// Whether it says that it goes on with an earlier call.
    pub continues: bool,
}

/// What a call holds while it runs.
#[derive(Debug)]
pub struct CallPermit(HeldPermits);

#[derive(Debug)]
enum HeldPermits {
    /// Of all calls, and of those of the tool.
    Own {
        _all: Permit,
        _tool: Option<Permit>,
    },
    Shared(Arc<Self>),
}

impl From<Permit> for CallPermit {
    fn from(permit: Permit) -> Self {
        Self(HeldPermits::Own { _all: permit, _tool: None })
    }
}

impl CallPermit {
    /// The same for work that may outlive its call. Given back when both are dropped.
    #[must_use]
    pub fn share(self) -> [Self; 2] {
        let shared = match self.0 {
            HeldPermits::Shared(shared) => shared,
            own @ HeldPermits::Own { .. } => Arc::new(own),
        };
        [Self(HeldPermits::Shared(Arc::clone(&shared))), Self(HeldPermits::Shared(shared))]
    }
}

/// Why a call may not go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotAdmitted {
    /// Too many run.
    Full(Reached),
    /// Too many came.
    Rate {
        /// Which key below `limits` says so of all of its kind.
        key: &'static str,
        /// What says so of this one, if it has a limit of its own.
        own: Option<Arc<str>>,
        /// What the key says.
        limit: usize,
        /// Whose limit it is.
        scope: Scope,
        /// When there may be another one.
        retry: Duration,
    },
    /// It was the same one too often.
    Repeated {
        /// How often it was allowed.
        limit: usize,
        /// In which time.
        window: Duration,
    },
}

impl Admission {
    /// The limits of a configuration.
    #[must_use]
    pub fn new(limits: &Limits) -> Self {
        let empty = Self {
            calls: Quota::new("calls", limits.calls),
            tool_calls: None,
            own_tool_calls: Vec::new(),
            streams: Quota::new("streams", limits.streams),
            requests: Rates::default(),
            principal: Rates::default(),
            upstream: Rates::default(),
            tool: Rates::default(),
            repeated: None,
            continued: None,
            budget: Arc::new(DayBudget::new(limits)),
            taken: Arc::default(),
        };
        empty.with(limits)
    }

    /// The same with other limits. Calls that run, those of the day, and rates that stay count on.
    #[must_use]
    pub fn with(&self, limits: &Limits) -> Self {
        let own = &limits.own;
        let (rates, window) = (limits.calls_per_minute, limits.repeated_window);
        self.calls.resize(limits.calls);
        self.calls.resize_own(own.shares("calls", |own| own.calls));
        self.streams.resize(limits.streams);
        self.streams.resize_own(own.shares("streams", |own| own.streams));
        self.budget.resize(limits);
        let own_tool_calls: Vec<_> = own_shares(&own.tools, "calls", |own| own.calls);
        let tool_calls = (limits.tool_calls.is_some() || !own_tool_calls.is_empty()).then(|| {
            let upstream = limits.tool_calls.unwrap_or(usize::MAX);
            let shares = Shares { total: usize::MAX, principal: usize::MAX, upstream };
            let quota = self.tool_calls.clone().unwrap_or_else(|| Quota::new("tool.calls", shares));
            quota.resize(shares);
            quota
        });
        let minute = "calls_per_minute";
        let rounds = limits.repeated_calls.map(|count| count.saturating_mul(ROUNDS));
        Self {
            calls: Arc::clone(&self.calls),
            tool_calls,
            own_tool_calls,
            streams: Arc::clone(&self.streams),
            requests: self
                .requests
                .with(rates.requests, own_shares(&own.keys, "requests_per_minute", |own| own.requests_per_minute)),
            principal: self.principal.with(rates.principal, own_shares(&own.keys, minute, |own| own.calls_per_minute)),
            upstream: self
                .upstream
                .with(rates.upstream, own_shares(&own.upstreams, minute, |own| own.calls_per_minute)),
            tool: self.tool.with(rates.tool, own_shares(&own.tools, minute, |own| own.calls_per_minute)),
            repeated: rates::again(self.repeated.as_ref(), limits.repeated_calls, window),
            continued: rates::again(self.continued.as_ref(), rounds, window),
            budget: Arc::clone(&self.budget),
            taken: Arc::clone(&self.taken),
        }
    }

    /// What limits how many calls and streams run at once.
    pub fn quotas(&self) -> impl Iterator<Item = &Quota> {
        [Some(&self.calls), self.tool_calls.as_ref(), Some(&self.streams)].into_iter().flatten().map(|quota| &**quota)
    }

    /// Lets a request in, wherever it leads.
    ///
    /// # Errors
    ///
    /// When its caller has had as many as there may be in a minute.
    pub fn request(&self, principal: &Arc<str>) -> Result<(), NotAdmitted> {
        let Some((limiter, own)) = self.requests.of(|whose| whose == principal) else { return Ok(()) };
        limiter.take(principal, Instant::now()).map_err(|retry| {
            LIMITS_REACHED.count(REQUESTS, "");
            NotAdmitted::Rate {
                key: REQUESTS,
                own: own.cloned(),
                limit: limiter.count(),
                scope: Scope::Principal,
                retry,
            }
        })?;
        self.taken.note(REQUESTS, || vouched_for(principal));
        Ok(())
    }

    /// Lets a call go on.
    ///
    /// # Errors
    ///
    /// The first limit that it would exceed. Its caller's own come first, so that what one may not do takes nothing of what
    /// others may.
    pub fn call(&self, call: &AdmittedCall<'_>) -> Result<CallPermit, NotAdmitted> {
        self.admit(call).inspect_err(|why| match why {
            // A quota counts for itself.
            NotAdmitted::Full(_) => {}
            NotAdmitted::Rate { key, .. } => LIMITS_REACHED.count(key, ""),
            NotAdmitted::Repeated { .. } => LIMITS_REACHED.count("repeated_calls", ""),
        })
    }

    fn admit(&self, call: &AdmittedCall<'_>) -> Result<CallPermit, NotAdmitted> {
        let AdmittedCall { principal, upstream, tool, arguments, continues } = *call;
        let now = Instant::now();
        if let (Some(repeated), Some(tool)) = (&self.repeated, tool) {
            // Without an object of arguments it is the call with an empty one.
            let arguments = arguments.unwrap_or(b"{}");
            let limiter = self.continued.as_ref().filter(|_| continues).unwrap_or(repeated);
            let again = |_| NotAdmitted::Repeated { limit: limiter.count(), window: limiter.period() };
            limiter.take(&(&**principal, upstream, tool, arguments), now).map_err(again)?;
        }
        let rate = |limiter: Option<(&RateLimiter, Option<&Arc<str>>)>,
                    key: &'static str,
                    scope: Scope,
                    take: &dyn Fn(&RateLimiter) -> Result<(), Duration>,
                    name: &dyn Fn() -> Option<String>|
         -> Result<(), NotAdmitted> {
            let Some((limiter, own)) = limiter else { return Ok(()) };
            let over = |retry| NotAdmitted::Rate { key, own: own.cloned(), limit: limiter.count(), scope, retry };
            take(limiter).map_err(over)?;
            self.taken.note(key, name);
            Ok(())
        };
        let own = self.principal.of(|whose| whose == principal);
        rate(own, OF_PRINCIPAL, Scope::Principal, &|it| it.take(principal, now), &|| vouched_for(principal))?;
        if let Some(tool) = tool {
            let own = self.tool.of(|whose| whose.matches(upstream, tool));
            let name = || Some(format!("{upstream}/{tool}"));
            rate(own, OF_TOOL, Scope::Upstream, &|it| it.take(&(upstream, tool), now), &name)?;
        }
        let own = self.upstream.of(|whose| **whose == *upstream);
        rate(own, OF_UPSTREAM, Scope::Upstream, &|it| it.take(&upstream, now), &|| Some(upstream.to_owned()))?;
        let all = self.calls.take(principal, Some(upstream)).map_err(NotAdmitted::Full)?;
        let tool = match (&self.tool_calls, tool) {
            (Some(quota), Some(tool)) => {
                let own = self.own_tool_calls.iter().find(|(whose, _)| whose.matches(upstream, tool));
                let (name, own) = (format!("{upstream}/{tool}"), own.map(|(_, own)| own));
                Some(quota.take_within(principal, Some(&name), 1, own).map_err(NotAdmitted::Full)?)
            }
            _ => None,
        };
        // Last, so that a call which is refused costs nothing of it.
        let DayIsOver { limit, key, retry } = match self.budget.take(principal, SystemTime::now()) {
            Ok(()) => return Ok(CallPermit(HeldPermits::Own { _all: all, _tool: tool })),
            Err(over) => over,
        };
        Err(NotAdmitted::Rate { key: "principal.calls_per_day", own: key, limit, scope: Scope::Principal, retry })
    }

    /// What callers use here of the limits that gateways share, for the other gateways.
    #[must_use]
    pub fn usage(&self) -> LimitUsage {
        let held = self.quotas().map(|quota| (quota.name().to_owned(), quota.held()));
        LimitUsage { held: held.filter(|(_, held)| !held.is_empty()).collect(), taken: self.taken.tell() }
    }

    /// Notes what callers use at other gateways, by gateway; nothing where that is not known now.
    pub fn used_elsewhere(&self, others: Option<&HashMap<String, LimitUsage>>) {
        for quota in self.quotas() {
            let mut held: BTreeMap<&str, usize> = BTreeMap::new();
            let told = others.into_iter().flat_map(HashMap::values);
            for (holder, count) in told.filter_map(|usage| usage.held.get(quota.name())).flatten() {
                let all = held.entry(holder).or_default();
                *all = all.saturating_add(*count);
            }
            quota.hold_elsewhere(&held);
        }
        let now = Instant::now();
        for (kind, key, count) in others.map(|others| self.taken.hear(others)).unwrap_or_default() {
            let of = |name: &str, rates: &Rates<Arc<str>>| {
                rates.of(|whose| **whose == *name).inspect(|(limiter, _)| limiter.owe(&name, count, now));
            };
            match (&*kind, key.split_once('/')) {
                (REQUESTS, _) => of(&key, &self.requests),
                (OF_PRINCIPAL, _) => of(&key, &self.principal),
                (OF_UPSTREAM, _) => of(&key, &self.upstream),
                (OF_TOOL, Some((upstream, tool))) => {
                    let limiter = self.tool.of(|whose| whose.matches(upstream, tool));
                    limiter.inspect(|(limiter, _)| limiter.owe(&(upstream, tool), count, now));
                }
                _ => {}
            }
        }
    }

    /// What principals may call in a day.
    #[must_use]
    pub const fn budget(&self) -> &Arc<DayBudget> {
        &self.budget
    }

    /// Lets a stream open that stays open until somebody ends it, at the upstream that it is of alone.
    ///
    /// # Errors
    ///
    /// When there are too many.
    pub fn stream(&self, principal: &Arc<str>, upstream: Option<&str>) -> Result<Permit, Reached> {
        self.streams.take(principal, upstream)
    }
}

/// A principal that other gateways may be told of: an address is nobody whom an issuer vouches for.
fn vouched_for(principal: &str) -> Option<String> {
    principal.contains('\n').then(|| principal.to_owned())
}

impl NotAdmitted {
    /// The status that says so over HTTP: it is the caller's doing, or it is not.
    #[must_use]
    pub const fn status(&self) -> u16 {
        match self {
            Self::Full(reached) => reached.status(),
            Self::Rate { scope: Scope::Principal, .. } => 429,
            Self::Rate { .. } => 503,
            // What a model is told, and no failure of the request.
            Self::Repeated { .. } => 200,
        }
    }

    /// When it may be tried again, in whole seconds; none if nobody knows.
    #[must_use]
    pub const fn retry_after(&self) -> Option<u64> {
        match self {
            Self::Rate { retry, .. } => Some(retry.as_secs() + 1),
            Self::Full(_) | Self::Repeated { .. } => None,
        }
    }
}

impl fmt::Display for NotAdmitted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full(reached) => reached.fmt(f),
            Self::Rate { key, own, limit, .. } => {
                let (who, what) = match *key {
                    "principal.requests_per_minute" => ("this caller", "requests in a minute"),
                    "principal.calls_per_day" => ("this caller", "calls today"),
                    "principal.calls_per_minute" => ("this caller", "calls in a minute"),
                    "tool.calls_per_minute" => ("this tool", "calls in a minute"),
                    _ => ("this upstream", "calls in a minute"),
                };
                let seconds = self.retry_after().unwrap_or_default();
                let of_kind = format!("limits.{key}");
                let key = own.as_deref().unwrap_or(&of_kind);
                write!(f, "{who} has had {limit} {what}, as many as `{key}` allows; try again in {seconds} s")
            }
            Self::Repeated { limit, window } => write!(
                f,
                "This call was made {limit} times within {} s with the same arguments, as often as \
                 `limits.repeated_calls` allows. Its result will not change by calling again: use the last one, change the \
                 arguments, or wait.",
                window.as_secs()
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

    use proptest::prelude::*;

    use super::*;

    /// Principal, upstream and tool of a call that runs.
    type Held = (usize, usize, usize, CallPermit);

    fn limits() -> Limits {
        Limits { calls: Shares { total: 6, principal: 3, upstream: 4 }, tool_calls: Some(2), ..Limits::default() }
    }

    fn call<'a>(principal: &'a Arc<str>, upstream: &'a str, tool: Option<&'a str>) -> AdmittedCall<'a> {
        AdmittedCall { principal, upstream, tool, arguments: Some(b"{}"), continues: false }
    }

    proptest! {
        /// Whatever comes and goes: no limit is exceeded, whoever is below all limits is let through, and in the end
        /// everything is given back.
        #[test]
        fn what_is_taken_is_given_back(steps in prop::collection::vec((0..3_usize, 0..3_usize, 0..3_usize, any::<bool>()), 0..200)) {
            let admission = Admission::new(&limits());
            let principals: Vec<Arc<str>> = ["ada", "bob", "eve"].map(Arc::from).into();
            let (upstreams, tools) = (["x", "y", "z"], [None, Some("t"), Some("u")]);
            let mut held: Vec<Held> = Vec::new();
            for (who, at, tool, comes) in steps {
                if !comes {
                    if !held.is_empty() {
                        held.swap_remove(who % held.len());
                    }
                    continue;
                }
                let count = |is: &dyn Fn(&Held) -> bool| held.iter().filter(|one| is(one)).count();
                let free = held.len() < 6
                    && count(&|one| one.0 == who) < 3
                    && count(&|one| one.1 == at) < 4
                    && (tool == 0 || count(&|one| (one.1, one.2) == (at, tool)) < 2);
                let admitted = admission.call(&call(&principals[who], upstreams[at], tools[tool]));
                prop_assert_eq!(admitted.is_ok(), free);
                held.extend(admitted.ok().map(|permit| (who, at, tool, permit)));
            }
            drop(held);
            prop_assert_eq!(admission.calls.used(), 0);
            prop_assert_eq!(admission.tool_calls.as_ref().map(|quota| quota.used()), Some(0));
        }
    }

    #[test]
    fn the_limit_that_is_reached_is_named() {
        let mut limits = limits();
        limits.calls_per_minute.principal = Some(2);
        let admission = Admission::new(&limits);
        let (ada, eve): (Arc<str>, Arc<str>) = ("ada".into(), "eve".into());
        for _ in 0..2 {
            assert!(admission.call(&call(&ada, "x", None)).is_ok());
        }
        let why = admission.call(&call(&ada, "x", None)).unwrap_err();
        assert_eq!(why.status(), 429);
        assert!(why.retry_after().is_some_and(|seconds| (1..=31).contains(&seconds)), "{why:?}");
        assert!(why.to_string().contains("`limits.principal.calls_per_minute`"), "{why}");
        let _one = admission.call(&call(&eve, "x", Some("t"))).unwrap();
        let _two = admission.call(&call(&eve, "x", Some("t"))).unwrap();
        assert!(admission.stream(&eve, None).is_ok());
        let bob: Arc<str> = "bob".into();
        let why = admission.call(&call(&bob, "x", Some("t"))).unwrap_err();
        assert_eq!(why.status(), 503);
        assert!(why.to_string().contains("`limits.tool.calls`") && why.to_string().contains("`x/t`"), "{why}");
    }

    #[test]
    fn the_same_call_again_and_again_is_told_so_and_another_is_not() {
        let limits = Limits { repeated_calls: Some(3), ..Limits::default() };
        let admission = Admission::new(&limits);
        let ada: Arc<str> = "ada".into();
        let same = call(&ada, "x", Some("t"));
        for _ in 0..3 {
            assert!(admission.call(&same).is_ok());
        }
        assert!(matches!(admission.call(&same), Err(NotAdmitted::Repeated { limit: 3, .. })));
        assert!(admission.call(&AdmittedCall { arguments: Some(b"{\"a\":1}"), ..same }).is_ok());
        assert!(admission.call(&AdmittedCall { upstream: "y", ..same }).is_ok());
        let empty = |arguments| AdmittedCall { upstream: "z", arguments, ..same };
        for arguments in [None, Some(&b"{}"[..]), None] {
            assert!(admission.call(&empty(arguments)).is_ok());
        }
        assert!(matches!(admission.call(&empty(None)), Err(NotAdmitted::Repeated { .. })), "without arguments too");
        assert!(admission.call(&AdmittedCall { tool: None, ..same }).is_ok());
        let round = AdmittedCall { continues: true, ..same };
        let rounds = (0..100).filter(|_| admission.call(&round).is_ok()).count();
        assert_eq!(rounds, 3 * ROUNDS, "whoever makes up a state is limited too");
    }
}
