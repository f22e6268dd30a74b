//! Faults of an upstream, and of the network before it.

use std::fs;
use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, KeyUsagePurpose};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tokio::time::sleep;

use super::load::Probe;
use super::machine::Hosts;
use super::rig::{IMPATIENT, Rig, readable, twice};
use super::{Outcome, Random, Scale};
use crate::cutter::{Cutter, Fault};
use crate::peer::{Launch, free_port};
use crate::restart::RestartableServer;
use crate::stub::Offer;
use crate::wait::until;
use crate::{Gateway, Stub};

/// How many clients an upstream has that costs a process for each.
const FEW: usize = 4;

type Result = std::result::Result<String, Vec<String>>;

pub(super) async fn http_killed(scale: Scale) -> Result {
    let mut server = RestartableServer::everything("streamableHttp", "/mcp").await;
    let rig = Rig::start(scale, &(server.config("faulty") + IMPATIENT), Probe::Sum).await;
    rig.drill(async |_| restarts(&mut server, scale).await).await
}

pub(super) async fn sse_killed_mid_stream(scale: Scale) -> Result {
    let mut server = RestartableServer::everything("sse", "/sse").await;
    let rig = Rig::start(scale, &(server.config("faulty") + IMPATIENT), Probe::Long).await;
    rig.drill(async |_| restarts(&mut server, scale).await).await
}

async fn restarts(server: &mut RestartableServer, scale: Scale) {
    for _ in 0..scale.times {
        sleep(scale.outage).await;
        server.restart().await;
    }
}

pub(super) async fn stdio_killed_mid_call(scale: Scale) -> Result {
    let rig = Rig::start(scale, &Launch::everything().config("faulty"), Probe::Long).await.few_clients(FEW);
    let mut random = Random::new(41);
    rig.drill(async |rig: &mut Rig| {
        for _ in 0..4 * scale.times {
            sleep(Duration::from_millis(200)).await;
            let children = rig.gateway.children();
            if children.is_empty() {
                continue;
            }
            let (id, _) = children[random.below(children.len())];
            // It may have ended by itself since.
            let _ = kill_process(Pid::from_raw(id.cast_signed()).expect("an id is not zero"), Signal::KILL);
        }
    })
    .await
}

pub(super) async fn network_delays(scale: Scale) -> Result {
    network(scale, Fault::Delay(Duration::from_millis(300)), Probe::Echo).await
}

pub(super) async fn network_drops(scale: Scale) -> Result {
    network(scale, Fault::Drop, Probe::Echo).await
}

pub(super) async fn network_resets(scale: Scale) -> Result {
    network(scale, Fault::Reset, Probe::Echo).await
}

pub(super) async fn network_truncates(scale: Scale) -> Result {
    network(scale, Fault::Truncate, Probe::Echo).await
}

pub(super) async fn network_half_closes(scale: Scale) -> Result {
    network(scale, Fault::HalfClose, Probe::Echo).await
}

pub(super) async fn network_throttles(scale: Scale) -> Result {
    network(scale, Fault::Throttle, Probe::Echo).await
}

pub(super) async fn safe_requests_over_resets(scale: Scale) -> Result {
    network(scale, Fault::Reset, Probe::Read).await
}

pub(super) async fn accepts_and_never_answers(scale: Scale) -> Result {
    network(scale, Fault::Silent, Probe::Echo).await
}

pub(super) async fn unavailable(scale: Scale) -> Result {
    network(Scale { times: 1, outage: scale.unavailable, ..scale }, Fault::Unavailable, Probe::Echo).await
}

/// The network before an upstream has a fault for a while, and is well again.
async fn network(scale: Scale, fault: Fault, probe: Probe) -> Result {
    let stub = readable().await;
    let network = Cutter::start(stub.address()).await;
    let config = format!("[upstreams.faulty]\nurl = \"{}\"\n{IMPATIENT}", network.url("/mcp"));
    let rig = Rig::start(scale, &config, probe).await;
    let report = rig
        .drill(async |_| {
            for _ in 0..scale.times {
                network.fail(fault);
                sleep(scale.outage).await;
                network.fail(Fault::None);
                sleep(scale.outage / 4).await;
            }
        })
        .await?;
    let repeated: Vec<_> = twice(&stub).map(|text| format!("{text} ran twice")).collect();
    if repeated.is_empty() { Ok(report) } else { Err(repeated) }
}

/// Certificates of a CA for `localhost`.
struct Certificates {
    folder: TempDir,
}

impl Certificates {
    fn new() -> Self {
        Self { folder: TempDir::new().expect("a temporary directory can be made") }
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.folder.path().join(name)
    }

    fn authority() -> CertifiedIssuer<'static, KeyPair> {
        let mut params = CertificateParams::new(Vec::new()).expect("there are no names");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let key = KeyPair::generate().expect("a key can be made");
        CertifiedIssuer::self_signed(params, key).expect("a certificate can be made")
    }

    /// Has the server show another certificate, of this authority.
    fn issue(&self, authority: &CertifiedIssuer<'static, KeyPair>) {
        let key = KeyPair::generate().expect("a key can be made");
        let params = CertificateParams::new(vec!["localhost".to_owned()]).expect("the name is one");
        let certificate = params.signed_by(&key, authority).expect("a certificate can be made");
        self.write("own.key", &key.serialize_pem());
        self.write("own.pem", &certificate.pem());
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).expect("the file can be written");
    }
}

/// A second gateway, which stands in for an upstream with TLS.
pub(super) struct SecureServer {
    certificates: Certificates,
    /// Whom the gateway trusts, and whom it does not.
    authorities: [CertifiedIssuer<'static, KeyPair>; 2],
    config: String,
    port: u16,
    server: Option<Gateway>,
    _stub: Stub,
}

impl SecureServer {
    pub(super) async fn start() -> Self {
        let (stub, certificates) = (Stub::start().await, Certificates::new());
        let authorities = [Certificates::authority(), Certificates::authority()];
        certificates.write("ca.pem", &authorities[0].pem());
        certificates.issue(&authorities[0]);
        let (certificate, key) = (certificates.path("own.pem"), certificates.path("own.key"));
        let config = format!("[tls]\ncertificate = {certificate:?}\nkey = {key:?}\n{}", stub.config("stub"));
        let port = free_port();
        let server = Some(Gateway::start_at(port, &config).await);
        Self { certificates, authorities, config, port, server, _stub: stub }
    }

    /// The lines of a configuration that make it the upstream `name`.
    pub(super) fn config(&self, name: &str) -> String {
        format!("[upstreams.{name}]\nurl = \"https://localhost:{}/mcp/stub\"\n{IMPATIENT}", self.port)
    }

    /// The file of those whom the gateway is to trust, for its environment.
    pub(super) fn roots(&self) -> (&'static str, String) {
        let file = self.certificates.path("ca.pem");
        ("SSL_CERT_FILE", file.to_str().expect("the path is text").to_owned())
    }

    /// Its certificate is renewed while it runs.
    pub(super) async fn renew(&self) {
        self.certificates.issue(&self.authorities[0]);
        let running = self.server.as_ref().expect("it runs");
        let reloads = || running.log().matches("the configuration was reloaded").count();
        let before = reloads();
        running.signal(Signal::HUP);
        until("the certificate is taken", || reloads() > before).await;
    }

    /// It starts anew with a certificate of somebody whom the gateway trusts, or does not.
    pub(super) async fn restart(&mut self, is_trusted: bool) {
        self.certificates.issue(&self.authorities[usize::from(!is_trusted)]);
        drop(self.server.take());
        self.server = Some(Gateway::start_at(self.port, &self.config).await);
    }
}

/// The certificate of an upstream is renewed, then one that nobody trusts, then good.
pub(super) async fn certificate_changes(scale: Scale) -> Result {
    let mut server = SecureServer::start().await;
    let (name, file) = server.roots();
    let config = server.config("faulty");
    let rig = Rig::start_by(scale, &config, Probe::Echo, &[(name, &file)], |command| command).await;
    rig.drill(async |_| {
        server.renew().await;
        for is_trusted in [false, true] {
            server.restart(is_trusted).await;
            sleep(scale.outage).await;
        }
    })
    .await
}

/// An upstream behind a name, which can lead elsewhere.
pub(super) struct NamedServer {
    /// The names that the gateway sees.
    pub(super) hosts: Hosts,
    at: u8,
    stub: Stub,
}

impl NamedServer {
    /// None where no process may have a file of hosts.
    pub(super) async fn start() -> Option<Self> {
        let hosts = Hosts::new()?;
        let stub = Stub::at(([127, 0, 0, 1], free_port()).into(), Offer::default()).await;
        Some(Self { hosts, at: 1, stub })
    }

    /// The lines of a configuration that make it the upstream `name`.
    pub(super) fn config(&self, name: &str) -> String {
        let port = self.stub.address().port();
        format!("[upstreams.{name}]\nurl = \"http://{}:{port}/mcp\"\n{IMPATIENT}", Hosts::NAME)
    }

    /// Its name leads to another address, and nobody is at the former one.
    pub(super) async fn moves(&mut self) {
        self.at = 3 - self.at;
        let port = self.stub.address().port();
        let next = Stub::at(([127, 0, 0, self.at], port).into(), Offer::default()).await;
        self.hosts.lead_to(&format!("127.0.0.{}", self.at));
        self.stub = next;
    }
}

/// The name of the upstream leads elsewhere, and its former address is gone. A name is believed for half a minute.
pub(super) async fn address_changes(scale: Scale) -> Outcome {
    let Some(mut server) = NamedServer::start().await else {
        return Outcome::Skipped("`unshare --mount` is not allowed here".to_owned());
    };
    let config = server.config("faulty");
    let rig = Rig::start_by(scale, &config, Probe::Echo, &Hosts::ENVIRONMENT, |command| server.hosts.seen_by(&command));
    let rig = rig.await;
    rig.drill(async |_| {
        server.moves().await;
        sleep(scale.outage).await;
    })
    .await
    .into()
}
