//! What Weir must know of each method: where its target is named, and whether it may be sent twice.

use std::borrow::Cow;

use crate::Message;

/// `notifications/progress`
pub const PROGRESS: &str = "notifications/progress";
/// `notifications/cancelled`
pub const CANCELLED: &str = "notifications/cancelled";
/// `notifications/initialized`
pub const INITIALIZED: &str = "notifications/initialized";
/// `notifications/message`
pub const LOG_MESSAGE: &str = "notifications/message";
/// `notifications/subscriptions/acknowledged`
pub const ACKNOWLEDGED: &str = "notifications/subscriptions/acknowledged";
/// `notifications/tasks/status`, of the tasks of 2025-11-25
pub const TASK_STATUS: &str = "notifications/tasks/status";
/// `notifications/tasks`, of the extension `io.modelcontextprotocol/tasks`
pub const TASK_CHANGE: &str = "notifications/tasks";
/// `notifications/resources/updated`
pub const UPDATED: &str = "notifications/resources/updated";
/// `notifications/roots/list_changed`
pub const ROOTS_CHANGED: &str = "notifications/roots/list_changed";
/// `tasks/list`, of 2025-11-25
pub const TASKS_LIST: &str = "tasks/list";
/// `tasks/result`, of 2025-11-25
pub const TASKS_RESULT: &str = "tasks/result";
/// `initialize`
pub const INITIALIZE: &str = "initialize";
/// `ping`
pub const PING: &str = "ping";
/// `server/discover`
pub const DISCOVER: &str = "server/discover";
/// `tools/list`
pub const TOOLS_LIST: &str = "tools/list";
/// `tools/call`
pub const TOOLS_CALL: &str = "tools/call";
/// `prompts/list`
pub const PROMPTS_LIST: &str = "prompts/list";
/// `prompts/get`
pub const PROMPTS_GET: &str = "prompts/get";
/// `resources/list`
pub const RESOURCES_LIST: &str = "resources/list";
/// `resources/templates/list`
pub const TEMPLATES_LIST: &str = "resources/templates/list";
/// `resources/read`
pub const RESOURCES_READ: &str = "resources/read";
/// `resources/subscribe`
pub const SUBSCRIBE: &str = "resources/subscribe";
/// `resources/unsubscribe`
pub const UNSUBSCRIBE: &str = "resources/unsubscribe";
/// `completion/complete`
pub const COMPLETE: &str = "completion/complete";
/// `logging/setLevel`
pub const SET_LEVEL: &str = "logging/setLevel";
/// `subscriptions/listen`
pub const LISTEN: &str = "subscriptions/listen";

/// The methods that a client may call in the modern era, extensions included.
pub const MODERN_METHODS: [&str; 13] = [
    DISCOVER,
    TOOLS_LIST,
    TOOLS_CALL,
    PROMPTS_LIST,
    PROMPTS_GET,
    RESOURCES_LIST,
    TEMPLATES_LIST,
    RESOURCES_READ,
    COMPLETE,
    LISTEN,
    "tasks/get",
    "tasks/update",
    "tasks/cancel",
];

/// The methods of the legacy era that the modern one has taken away.
pub const REMOVED_METHODS: [&str; 7] = [INITIALIZE, PING, SET_LEVEL, SUBSCRIBE, UNSUBSCRIBE, TASKS_LIST, TASKS_RESULT];

/// What both sides tell each other and nobody answers.
const NOTIFICATIONS: [&str; 12] = [
    PROGRESS,
    CANCELLED,
    INITIALIZED,
    LOG_MESSAGE,
    UPDATED,
    ACKNOWLEDGED,
    TASK_STATUS,
    TASK_CHANGE,
    ROOTS_CHANGED,
    "notifications/tools/list_changed",
    "notifications/prompts/list_changed",
    "notifications/resources/list_changed",
];

/// The method that is written so, if it is one of the specification.
pub(crate) fn known(written: &[u8]) -> Option<&'static str> {
    let all = MODERN_METHODS.iter().chain(&REMOVED_METHODS).chain(&NOTIFICATIONS);
    all.copied().find(|method| method.as_bytes() == written)
}

/// Which part of `params` names the target of a method.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Route {
    /// `params.name`: a tool or a prompt.
    Name,
    /// `params.uri`: a resource.
    Uri,
    /// `params.ref`: a prompt or a resource to complete for.
    Reference,
    /// `params.taskId`: a task that is under way.
    Task,
    /// Nothing: the method concerns the server as a whole, or is unknown.
    None,
}

/// Where a method names its target.
pub fn route(method: &str) -> Route {
    match method {
        TOOLS_CALL | PROMPTS_GET => Route::Name,
        RESOURCES_READ | SUBSCRIBE | UNSUBSCRIBE => Route::Uri,
        COMPLETE => Route::Reference,
        "tasks/get" | TASKS_RESULT | "tasks/cancel" | "tasks/update" => Route::Task,
        _ => Route::None,
    }
}

/// What a message's method is about, as `Mcp-Name` repeats it (2026-07-28, basic/transports): a name, an address or a
/// task.
pub fn target(message: &Message) -> Option<Cow<'_, str>> {
    match route(message.method()) {
        Route::Name => message.name(),
        Route::Uri => message.uri(),
        Route::Task => message.task_id(),
        Route::Reference | Route::None => None,
    }
}

/// Whether the answer is a stream that stays open until somebody ends it.
pub fn is_endless(method: &str) -> bool {
    method == LISTEN
}

/// Whether the method is one of the lists that come in pages.
pub fn is_list(method: &str) -> bool {
    matches!(method, TOOLS_LIST | PROMPTS_LIST | RESOURCES_LIST | TEMPLATES_LIST | TASKS_LIST)
}

/// Whether a call that may already have run can be sent once more without harm. Unknown methods cannot.
pub fn safe_to_repeat(method: &str) -> bool {
    is_list(method)
        || matches!(method, RESOURCES_READ | PROMPTS_GET | COMPLETE | PING | DISCOVER | "tasks/get" | TASKS_RESULT)
}

/// Whether the modern era has this method.
pub fn is_modern(method: &str) -> bool {
    MODERN_METHODS.contains(&method)
}

/// Whether the modern era has taken this method away.
pub fn is_removed(method: &str) -> bool {
    REMOVED_METHODS.contains(&method)
}

/// Whether the specification has this method, in some era.
pub fn is_known(method: &str) -> bool {
    is_modern(method) || is_removed(method)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_and_the_unknown_are_never_repeated() {
        for method in [TOOLS_CALL, SUBSCRIBE, "tasks/cancel", "tasks/update", "vendor/thing", "", INITIALIZE] {
            assert!(!safe_to_repeat(method), "{method}");
        }
        for method in [TOOLS_LIST, TEMPLATES_LIST, RESOURCES_READ, PROMPTS_GET, COMPLETE, PING, DISCOVER] {
            assert!(safe_to_repeat(method), "{method}");
        }
    }

    #[test]
    fn each_method_has_its_route() {
        let of =
            [TOOLS_CALL, PROMPTS_GET, RESOURCES_READ, UNSUBSCRIBE, COMPLETE, "tasks/get", TOOLS_LIST, "x"].map(route);
        let is =
            [Route::Name, Route::Name, Route::Uri, Route::Uri, Route::Reference, Route::Task, Route::None, Route::None];
        assert_eq!(of, is);
        assert!(REMOVED_METHODS.iter().all(|method| !is_modern(method)));
    }
}
