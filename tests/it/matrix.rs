//! A part of the matrix that `make matrix` writes: one client of each kind at every server.

use weir_tests::matrix::{columns, rows, through, through_two, without};

/// The clients that stand for all others, by what their titles have.
const CHOSEN: [&str; 3] = ["modelcontextprotocol/sdk 1.32.2`, Streamable HTTP", "client 2.4.0`, modern", "alone"];

/// Those that go through two gateways behind a balancer too.
const BALANCED: [&str; 2] = [CHOSEN[0], CHOSEN[1]];

#[tokio::test]
async fn what_works_without_the_gateway_works_with_it() {
    let columns = columns().await;
    let without = without(&columns).await;
    for (column, cell) in columns.iter().zip(&without) {
        assert!(cell.passed.contains(&"call"), "{} by itself: {:?}", column.key, cell.failures);
    }
    let mut lost = Vec::new();
    for (name, two) in CHOSEN.into_iter().map(|name| (name, false)).chain(BALANCED.map(|name| (name, true))) {
        let row = rows().into_iter().find(|row| row.title.contains(name));
        let row = row.unwrap_or_else(|| panic!("there is no client called {name}"));
        let cells = if two { through_two(&row, &columns).await } else { through(&row, &columns).await };
        for ((column, cell), without) in columns.iter().zip(cells).zip(&without) {
            let Some(cell) = cell else { continue };
            if !cell.lost(without).is_empty() {
                lost.push(format!("{} at {} (two: {two}): {:?}", row.title, column.key, cell.failures));
            }
        }
    }
    assert!(lost.is_empty(), "lost on the way:\n{}", lost.join("\n"));
}
