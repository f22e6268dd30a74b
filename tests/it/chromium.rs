//! The pages in a real browser without scripts, on a desk and on a phone: from the link that a call shows to connected, and
//! from the first page of the console to the result of a tool.

use std::{fs, path::Path};

use serde_json::json;
use weir_tests::chromium::{Window, tour, walk};
use weir_tests::{Gateway, Stub};

use crate::client_sign_in;
use crate::oidc_login::{Scene, gets_through};
use crate::sign_in::{modern, text, waiting};

async fn from_click_to_connected(window: Window) {
    let scene = Scene::new(&json!({ "names": true })).await;
    let (client, _, link) = scene.invited("ada").await;
    let pictures = Path::new(env!("CARGO_TARGET_TMPDIR"));
    // The client opens the link and comes back with the call, which waits for its person.
    let asked = modern(&client, "github__echo", json!({})).await;
    let given = json!({ "sign_in_github": { "action": "accept" } });
    let back = json!({ "requestState": asked["result"]["requestState"], "inputResponses": given });
    let waiting = waiting(&scene.gateway, &client, "github__echo", back);

    let sights = tour(window, "ada", &link, &["Sign in", "Sign out"], pictures).await;
    let connect = scene.gateway.url("/connect");
    for sight in &sights {
        assert!(sight.url == connect && sight.text.contains("For ada@example.com (ada)"), "{sight:?}");
        assert!(sight.width <= window.width, "{} of {} pixels: {sight:?}", sight.width, window.width);
        assert!(sight.complaints.is_empty() && sight.barriers.is_empty(), "{sight:?}");
        // The page is one answer: nothing is fetched beside it.
        assert_eq!(sight.fetched.last(), Some(&connect), "{sight:?}");
        assert_eq!(sight.fetched.iter().filter(|url| **url == connect).count(), 1, "{sight:?}");
    }
    assert!(sights[0].text.contains("github") && sights[0].text.contains("not signed in"), "{sights:?}");
    assert!(sights[1].text.contains("Signed in at github"), "{sights:?}");
    let done = waiting.await.unwrap();
    assert_eq!(text(&done["result"]), "hi", "{done}");
    assert!(sights[2].text.contains("Signed out of github"), "{sights:?}");
    assert!(!gets_through(&client).await, "signed out is signed out");
}

#[tokio::test]
async fn a_person_allows_a_client_with_a_phone() {
    let scene = client_sign_in::Scene::new().await;
    let (pictures, back) = (Path::new(env!("CARGO_TARGET_TMPDIR")), scene.gateway.url("/healthz"));
    let about = json!({ "client_name": "A".repeat(80), "redirect_uris": [back] });
    let client = scene.register(&about).await.1["client_id"].as_str().unwrap().to_owned();
    let page = scene.page(&client, &[("redirect_uri", &back)]);
    let window = Window::light("phone-consent", 390, 844);
    let sights = tour(window, "ada", &page, &["Do not allow"], pictures).await;
    assert!(sights[0].text.contains("Allow this client?") && sights[0].text.contains(&back), "{sights:?}");
    assert!(sights[0].width <= window.width && sights[0].complaints.is_empty(), "{sights:?}");
    assert!(sights[1].url.starts_with(&format!("{back}?error=access_denied")), "{sights:?}");
}

#[tokio::test]
async fn a_person_connects_at_a_desk() {
    from_click_to_connected(Window::light("desk", 1280, 800)).await;
}

#[tokio::test]
async fn a_person_connects_with_a_phone() {
    from_click_to_connected(Window::light("phone", 390, 844)).await;
}

/// The operator's own.
const LOGO: &str = "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 64 24' width='64' height='24'>\
                    <rect width='64' height='24' rx='6' fill='#0b5fcc'/></svg>";

async fn from_first_page_to_result(window: Window) {
    let (stub, folder) = (Stub::start().await, tempfile::tempdir().unwrap());
    let logo = folder.path().join("logo.svg");
    fs::write(&logo, LOGO).unwrap();
    let console = format!("[console]\nname = \"Acme <tools>\"\nlogo = {logo:?}\n");
    let down = "[upstreams.down]\nurl = \"http://127.0.0.1:1/mcp\"\n";
    let gateway = Gateway::start(&format!("{console}{}{down}", stub.config("stub"))).await;
    gateway.healthy(&["stub"]).await;
    let pictures = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let steps = json!([
        { "open": "Claude Code" }, { "link": "Tools: stub" }, { "link": "echo" }, { "fill": ["message", "<b>hi</b>"] }, "Call",
    ]);
    let sights = walk(window, "nobody", &gateway.url("/"), &steps, pictures).await;
    for sight in &sights {
        assert!(sight.width <= window.width, "{} of {} pixels: {sight:?}", sight.width, window.width);
        assert!(sight.complaints.is_empty() && sight.barriers.is_empty(), "{sight:?}");
        assert_eq!(sight.fetched.len(), 1, "the page is one answer: {sight:?}");
    }
    eprintln!(
        "{}: the first paint took {:?} ms",
        window.name,
        sights.iter().map(|sight| sight.paint).collect::<Vec<_>>()
    );
    assert!(sights.iter().all(|sight| sight.text.contains("Acme <tools>")), "{sights:?}");
    assert!(sights[0].text.contains("stub Stub of the tests"), "{sights:?}");
    assert!(sights[0].text.contains("healthy") && sights[0].text.contains("Try again"), "{sights:?}");
    assert!(sights[3].text.contains("Result") && sights[3].text.contains("<b>hi</b>"), "{sights:?}");
}

#[tokio::test]
async fn a_tool_is_tried_at_a_desk() {
    from_first_page_to_result(Window::light("console-desk", 1280, 800)).await;
}

#[tokio::test]
async fn a_tool_is_tried_at_a_desk_in_the_dark_and_with_a_phone_in_the_light() {
    from_first_page_to_result(Window { is_dark: true, ..Window::light("console-desk-dark", 1280, 800) }).await;
    from_first_page_to_result(Window::light("console-phone-light", 390, 844)).await;
}

#[tokio::test]
async fn a_tool_is_tried_with_a_phone_in_the_dark() {
    from_first_page_to_result(Window { is_dark: true, ..Window::light("console-phone", 390, 844) }).await;
}
