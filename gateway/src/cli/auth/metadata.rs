//! What authorization servers are told of Weir: to be published where they read it, or to register Weir by hand.

use std::{
    io::{self, Write},
    net::{Ipv4Addr, SocketAddr},
    process::ExitCode,
};

use crate::{
    credential::TokenIssuer,
    server::{authn, client_metadata::ClientMetadata},
    sign_in_links::SignInLinks,
};

use super::CommandScope;

/// Prints it for the server of one upstream, or for those of all at which people sign in with a browser.
pub(super) async fn print(about: &CommandScope, name: Option<&str>) -> anyhow::Result<ExitCode> {
    let address = about.config.listen.first().copied().unwrap_or(SocketAddr::from((Ipv4Addr::LOCALHOST, 8080)));
    let metadata = ClientMetadata::new(&about.config, &SignInLinks::new(&authn::root(&about.config, address)));
    let (mut issuers, mut failed) = (Vec::<TokenIssuer>::new(), false);
    match name {
        // All accounts of a service are at one server.
        Some(name) => {
            let name = about.accounts(name, None)?.first().copied().unwrap_or(name);
            issuers.push(about.account(name)?.issuer().await?);
        }
        None => {
            let all = about.manager.accounts().into_iter().filter(|account| account.is_configured());
            for account in all.filter(|account| account.is_for_people() && !account.is_by_code()) {
                match account.issuer().await {
                    Ok(issuer) if issuers.iter().any(|known| known.name == issuer.name) => {}
                    Ok(issuer) => issuers.push(issuer),
                    Err(why) => {
                        eprintln!("{}: {why}", account.name());
                        failed = true;
                    }
                }
            }
        }
    }
    let documents = if metadata.is_apart() {
        issuers.iter().map(|issuer| metadata.of(std::slice::from_ref(&issuer.name))).collect()
    } else {
        vec![metadata.of(&told_apart(issuers))]
    };
    for document in documents {
        writeln!(io::stdout().lock(), "{document:#}")?;
    }
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Of several servers that read one document, those that cannot have users of the others sent to them: they name
/// themselves to whoever comes back (RFC 9207), or the operator has written them down.
fn told_apart(issuers: Vec<TokenIssuer>) -> Vec<String> {
    let alone = issuers.len() < 2;
    let (good, others): (Vec<TokenIssuer>, Vec<TokenIssuer>) =
        issuers.into_iter().partition(|issuer| alone || issuer.is_named || issuer.is_written);
    for TokenIssuer { name, .. } in others {
        eprintln!(
            "{name} is left out: it does not name itself to those who come back (RFC 9207), so it could be sent codes of \
             the others. If you trust it, write oauth = {{ issuer = \"{name}\" }}; or have each server read a document of \
             its own, with {{issuer}} in client_metadata_url."
        );
    }
    good.into_iter().map(|issuer| issuer.name).collect()
}
