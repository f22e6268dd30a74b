//! Progress of a call: a bar on the terminal, where there is one.

use std::io::{self, IsTerminal, Write};

use serde_json::Value;

use crate::telemetry::printable;

/// How many characters the bar has.
const WIDTH: usize = 24;

/// How many characters of a message are shown: the line must not wrap.
const MESSAGE: usize = 40;

/// A line on standard error that is written anew with each progress.
#[derive(Default)]
pub(super) struct ProgressBar {
    is_shown: bool,
}

impl ProgressBar {
    /// Shows the `params` of a `notifications/progress`.
    pub(super) fn show(&mut self, params: &Value) {
        if io::stderr().is_terminal() {
            self.is_shown = true;
            // To the begin of the line, which is then erased (ECMA-48 §8.3.15, §8.3.41).
            eprint!("\r\x1b[K{}", line(params));
            drop(io::stderr().flush());
        }
    }

    /// Takes it away before something else is written.
    pub(super) fn clear(&mut self) {
        if std::mem::take(&mut self.is_shown) {
            eprint!("\r\x1b[K");
        }
    }
}

fn line(params: &Value) -> String {
    let message: String = printable(params["message"].as_str().unwrap_or_default()).chars().take(MESSAGE).collect();
    let progress = params["progress"].as_f64().unwrap_or_default();
    let shown = match params["total"].as_f64().filter(|total| *total > 0.0) {
        Some(total) => {
            let part = (progress / total).clamp(0.0, 1.0);
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is between 0 and WIDTH")]
            let full = (part * WIDTH as f64).round() as usize;
            format!("[{}{}] {:3.0}%", "#".repeat(full), "-".repeat(WIDTH - full), part * 100.0)
        }
        None => format!("{progress}"),
    };
    format!("{shown} {message}").trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::line;

    #[test]
    fn a_bar_shows_the_part_that_is_done() {
        let half = line(&json!({ "progress": 5, "total": 10, "message": "read\x1b[2J" }));
        assert_eq!(half, "[############------------]  50% read");
        assert_eq!(line(&json!({ "progress": 9, "total": 3 })), format!("[{}] 100%", "#".repeat(24)));
        assert_eq!(
            line(&json!({ "progress": 7, "total": 0, "message": "x".repeat(99) })),
            format!("7 {}", "x".repeat(40))
        );
        assert_eq!(line(&json!({})), "0");
    }
}
