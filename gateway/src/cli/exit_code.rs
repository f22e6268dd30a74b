//! The exit codes of all commands. Beside 0, 1 and those of the shell they are those of sysexits.h.

/// The configuration or the arguments cannot be used (`EX_USAGE`).
pub(super) const BAD_CONFIG: u8 = 64;
/// An upstream cannot be reached or opened (`EX_UNAVAILABLE`).
pub(super) const UNREACHABLE: u8 = 69;
/// There is no answer in time (`EX_TEMPFAIL`).
pub(super) const TIMED_OUT: u8 = 75;
/// The answers of an upstream are wrong (`EX_PROTOCOL`).
pub(super) const BAD_ANSWERS: u8 = 76;
/// An upstream wants a credential (`EX_NOPERM`).
pub(super) const NO_CREDENTIAL: u8 = 77;
/// Ctrl-C: 128 and the number of the signal.
pub(super) const INTERRUPTED: u8 = 130;

/// The code for a class of failures of upstreams.
pub(super) fn of_class(class: &str) -> u8 {
    match class {
        "unreachable" | "stopped" | "crashed" | "limit" => UNREACHABLE,
        "timeout" => TIMED_OUT,
        "protocol" | "lists" => BAD_ANSWERS,
        "authentication" | "policy" => NO_CREDENTIAL,
        _ => 1,
    }
}
