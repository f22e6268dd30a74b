//! One request and its answer, whoever made it.

use std::{pin::Pin, time::Duration};

use http::{HeaderValue, StatusCode, header};
use oauth2::{AsyncHttpClient, HttpRequest, HttpResponse, RequestTokenError, basic::BasicErrorResponse};
use serde::Deserialize;
use thiserror::Error;
use url::Url;

use crate::{Http, HttpError, TokenError, http::origin};

/// Why a request has no answer that says anything about the grant.
#[derive(Debug, Error)]
pub(crate) enum CallError {
    #[error(transparent)]
    Http(#[from] HttpError),
    #[error("it answers {status}")]
    Trouble { status: u16, retry_after: Option<Duration> },
    #[error("{origin} answers {status}")]
    Unclear { origin: String, status: u16 },
}

impl From<CallError> for TokenError {
    fn from(error: CallError) -> Self {
        match error {
            CallError::Http(error) => error.into(),
            CallError::Trouble { status, retry_after } => {
                Self::Temporary { reason: format!("it answers {status}"), retry_after }
            }
            CallError::Unclear { origin, status } => Self::Unclear { origin, status },
        }
    }
}

/// Our client in the words of the `oauth2` crate.
pub(crate) struct TokenCaller<'a>(pub(crate) &'a Http);

impl<'c> AsyncHttpClient<'c> for TokenCaller<'_> {
    type Error = CallError;
    type Future = Pin<Box<dyn Future<Output = Result<HttpResponse, CallError>> + Send + 'c>>;

    fn call(&'c self, request: HttpRequest) -> Self::Future {
        Box::pin(call(self.0, request))
    }
}

/// Sends a request for the `oauth2` crate and puts the answer into the form that it expects. Trouble of the server is
/// taken out here, while its status is known.
pub(crate) async fn call(http: &Http, request: HttpRequest) -> Result<HttpResponse, CallError> {
    let at = request.uri().to_string();
    let answer = http.execute(request).await?;
    let status = answer.status.as_u16();
    if matches!(status, 408 | 425 | 429 | 500..) {
        let seconds = answer.headers.get(header::RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
        return Err(CallError::Trouble { status, retry_after: seconds.map(Duration::from_secs) });
    }
    let code = serde_json::from_slice::<Code>(&answer.body).ok();
    // Some servers say no with 200.
    let good = answer.status.is_success() && code.is_none();
    if !good && code.is_none() {
        let origin = Url::parse(&at).map(|url| origin(&url)).unwrap_or_default();
        return Err(CallError::Unclear { origin, status });
    }
    let mut response = HttpResponse::new(answer.body.to_vec());
    *response.status_mut() = if good { StatusCode::OK } else { StatusCode::BAD_REQUEST };
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Ok(response)
}

/// The code of a refusal (RFC 6749 §5.2).
#[derive(Deserialize)]
struct Code {
    error: String,
}

pub(super) fn refusal(body: &[u8]) -> TokenError {
    TokenError::from_code(&serde_json::from_slice::<Code>(body).map(|code| code.error).unwrap_or_default())
}

/// What an error of the `oauth2` crate means; its texts are left out, for they hold the body.
pub(crate) fn failure(error: RequestTokenError<CallError, BasicErrorResponse>, url: &Url) -> TokenError {
    match error {
        RequestTokenError::ServerResponse(answer) => TokenError::from_code(answer.error().as_ref()),
        RequestTokenError::Request(error) => error.into(),
        RequestTokenError::Parse(..) | RequestTokenError::Other(_) => TokenError::Malformed(origin(url)),
    }
}
