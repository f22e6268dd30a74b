//! The gateway as its clients and upstreams see it.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test stops at the first thing that is not as it should be"
)]

mod access;
mod accounts;
mod access_attacks;
mod aggregate;
mod approval;
mod audit_log;
mod authorization_server;
mod bounds;
mod bytes;
mod callers;
mod call_limits;
mod calls;
mod certificates;
mod chromium;
mod clients;
mod configuration;
mod conformance;
mod connect;
mod crossing;
mod damaged;
mod device;
mod auth_server_faults;
mod exchange;
mod expiry;
mod floods;
mod forged_answers;
mod forward_proxy;
mod recipes;
mod reload;
mod reregistration;
mod healing;
mod deprovisioning;
mod introspection;
mod isolation;
mod issuers;
mod keys;
mod lists;
mod logging;
mod long_messages;
mod logins;
mod malformed_entries;
mod matrix;
mod messages;
mod mix_up;
mod as_migration;
mod outage;
mod page_commands;
mod policies;
mod processes;
mod progress;
mod questions;
mod quotas;
mod resume;
mod routing;
mod secrets;
mod sessionless;
mod sessions;
mod shutdown;
mod sign_in;
mod sign_in_log;
mod sse_clients;
mod starting;
mod stateless_upstream;
mod status;
mod steps;
mod tasks;
mod oidc_login;
mod waiting;
mod whole_run;
mod wire;
mod mcp_remote_parity;
