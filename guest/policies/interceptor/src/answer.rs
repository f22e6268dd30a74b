//! The answer to a JSON-RPC request, as a body of JSON or as a stream of events (Streamable HTTP, "Sending Messages to the
//! Server").

use weir_policy::json::Json;

/// The answer to the request with this id, whether it is a result or an error; none if there is none.
pub(crate) fn find(body: &str, is_stream: bool, id: &str) -> Option<Json> {
    let is_answer = |message: &Json| {
        message.get("id").and_then(Json::as_text) == Some(id)
            && (message.get("result").is_some() || message.get("error").is_some())
    };
    match is_stream {
        true => events(body).filter_map(|data| Json::parse(&data)).find(is_answer),
        false => Json::parse(body).filter(is_answer),
    }
}

/// The data of each event.
fn events(stream: &str) -> impl Iterator<Item = String> {
    let lines = stream.split('\n').map(|line| line.strip_suffix('\r').unwrap_or(line));
    let mut data: Option<String> = None;
    // The last event may lack its empty line.
    lines.chain([""]).filter_map(move |line| {
        if line.is_empty() {
            return data.take();
        }
        let more = line.strip_prefix("data:")?;
        let more = more.strip_prefix(' ').unwrap_or(more);
        match &mut data {
            Some(data) => {
                data.push('\n');
                data.push_str(more);
            }
            None => data = Some(more.to_owned()),
        }
        None
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answer_is_found_among_events() {
        let stream = "event: message\r\ndata: {\"method\":\"notifications/message\"}\r\n\r\n: comment\n\
                      data: {\"id\":\"x\",\ndata: \"result\":{\"valid\":true}}\n\n";
        let found = find(stream, true, "x");
        assert_eq!(found.and_then(|found| found.get("result")?.get("valid")?.as_bool()), Some(true));
        assert_eq!(find(stream, true, "y"), None);
        assert!(find("data: {\"id\":\"x\",\"result\":{}}", true, "x").is_some(), "a stream may end early");
    }

    #[test]
    fn only_the_answer_to_the_request_counts() {
        assert!(find(r#"{"id":"x","error":{}}"#, false, "x").is_some());
        for other in [r#"{"id":"y","result":{}}"#, r#"{"id":"x","method":"ping"}"#, "", "[]"] {
            assert_eq!(find(other, false, "x"), None, "{other}");
        }
    }
}
