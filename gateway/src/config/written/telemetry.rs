//! Where traces and metrics are sent.

use crate::config::quantity::Period;
use crate::config::read::table;
use crate::config::string::TemplateString;
use crate::config::value::{NamedValues, Share};

table! {
    /// Send traces and metrics to a collector of OpenTelemetry.
    #[schemars(rename = "Telemetry")]
    struct WrittenTelemetry("a table with the table `otlp`") {
        /// The collector.
        otlp: WrittenOtlpTelemetry,
    }

    /// Where traces and metrics are sent: OTLP over HTTP, in JSON.
    #[schemars(extend("required" = ["endpoint"]))]
    #[schemars(rename = "OtlpTelemetry")]
    struct WrittenOtlpTelemetry("a table with an `endpoint`") {
        /// The address without `/v1/traces` and `/v1/metrics`: `"http://collector.example.com:4318"`. Needed.
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
        /// Whether a span has the subject of its caller (`user.id`). Default: `false`.
        principal: bool,
        /// Whether metrics are sent. Default: `true`.
        metrics: bool,
        /// How often metrics are sent, `"1s"` at least. Default: `"60s"`.
        interval: Period,
    }
}
