//! How the audit log is kept.

use std::{path::PathBuf, time::Duration};

use super::{SafeUrl, Secret};

/// Where and how calls are recorded for an audit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditConfig {
    /// The file that records are appended to. Absolute.
    pub path: PathBuf,
    /// The size at which a file is complete and the next one begins, in bytes.
    pub max_size: usize,
    /// How many complete files are kept.
    pub keep: usize,
    /// How long complete files are kept; as long as there are no more than `keep` if this is none.
    pub max_age: Option<Duration>,
    /// When records are on disk for certain.
    pub sync: AuditSync,
    /// What becomes of the arguments of calls.
    pub arguments: AuditArguments,
    /// Whether calls are refused while records cannot be written.
    pub refuse: bool,
    /// Where records are sent, too.
    pub otlp: Option<OtlpConfig>,
}

/// Where and how questions for policies are recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordConfig {
    /// The file that they are appended to. Absolute.
    pub path: PathBuf,
    /// The names of the policies.
    pub policies: Vec<String>,
    /// Whether texts of calls are recorded too.
    pub bodies: bool,
    /// The size at which a file is put aside, in bytes.
    pub max_size: usize,
}

/// A collector of OpenTelemetry's logs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OtlpConfig {
    /// Its address for logs.
    pub url: SafeUrl,
    /// Headers for each request, names in lower case.
    pub headers: Vec<(String, Secret)>,
}

/// When records are on disk for certain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuditSync {
    /// After a fraction of a second, many together.
    Interval,
    /// As soon as there is one; those of calls come some 20 ms after them.
    Each,
}

/// What a record holds of the arguments of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuditArguments {
    /// A keyed digest.
    Digest,
    /// The digest, and the arguments themselves as far as they are not too long.
    Full,
}
