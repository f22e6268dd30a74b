//! Where traces, metrics and the log are sent.

use crate::config::quantity::Period;
use crate::config::read::table;
use crate::config::string::TemplateString;
use crate::config::value::{Count, NamedValues, Share};

table! {
    /// Send traces, metrics and the log to a collector of OpenTelemetry.
    #[schemars(rename = "Telemetry")]
    struct WrittenTelemetry("a table with the table `otlp`") {
        /// The collector.
        otlp: WrittenOtlpTelemetry,
    }

    /// Where traces, metrics and the log are sent: OTLP over HTTP, in JSON.
    #[schemars(extend("required" = ["endpoint"]))]
    #[schemars(rename = "OtlpTelemetry")]
    struct WrittenOtlpTelemetry("a table with an `endpoint`") {
        /// The address without `/v1/traces`, `/v1/metrics` and `/v1/logs`: `"http://collector.example.com:4318"`. Needed.
        endpoint: TemplateString,
        /// Headers for each request: `{ authorization = "Bearer ${file:collector-token}" }`.
        headers: NamedValues<TemplateString>,
        /// What Weir is called there (`service.name`). Default: `"weir"`.
        service_name: TemplateString,
        /// Whether calls are traced. Default: `true`.
        traces: bool,
        /// Which share of the calls is traced whose client sends no trace context, from 0 to 1. Other calls are traced if
        /// their client records them. Default: 1.
        sample: Share,
        /// Whether a client that sends a trace context decides whether its calls are traced. With `false`, `sample` counts for
        /// every call, and clients cannot make Weir record more. Default: `true`.
        parent_based: bool,
        /// How many calls are traced in a second, whoever wants it: as many at once, and the next ones evenly. Half of them
        /// may be of one token. The others are counted. Default: 200.
        traces_per_second: Count,
        /// Whether a span has the subject of its caller (`user.id`). Default: `false`.
        principal: bool,
        /// Whether metrics are sent. Default: `true`.
        metrics: bool,
        /// Whether the log is sent too: the same events that Weir writes to standard error. Default: `false`.
        logs: bool,
        /// How often metrics are sent, `"1s"` at least. Default: `"60s"`.
        interval: Period,
    }
}
