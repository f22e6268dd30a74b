//! The life of a call and of a connection, as state machines that know neither sockets nor clocks.
//!
//! `facts` holds what a policy is told and what it may answer. The machines hold what no policy can change.

pub mod facts;
