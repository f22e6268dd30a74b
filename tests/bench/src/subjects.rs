//! The table of what is compared, and how each is started.

use crate::load::{Client, Connection};
use crate::messages::{Era, Target, Workload};
use crate::process::{self, Process, free_address, shown};
use crate::redis::Redis;
use anyhow::{Context, Result, bail};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// How long a subject may take from its start to its first answer.
const READY_LIMIT: Duration = Duration::from_secs(10);
/// The same where its instructions are counted, which takes fifty times as long.
const COUNTED_READY_LIMIT: Duration = Duration::from_secs(300);

/// One row of each block of the table.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Subject {
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Kind {
    /// The upstream itself.
    Direct,
    /// Our bare `ProxyHttp`.
    Floor,
    Nginx,
    /// Weir with one upstream called `bench`, its other settings, and the endpoint that is called.
    Weir {
        settings: &'static str,
        path: &'static str,
        prefix: &'static str,
    },
    /// Weir with a policy about calls besides, which sees this and does that.
    WeirDeciding {
        see: &'static str,
        task: &'static str,
    },
    /// Weir with the shipped policies, for callers who bring a token, and what rules there are.
    WeirProving {
        rules: &'static str,
    },
    /// Weir with the shipped policies before an upstream of the era that its client does not speak.
    WeirTranslating {
        path: &'static str,
        prefix: &'static str,
    },
    /// Weir with the shipped policies before the upstream over HTTP+SSE, which only knows the legacy era.
    WeirSse,
    /// The same before the upstream as one child process for all; its CPU time is not counted.
    WeirStdio,
    /// Gateways with the shipped policies at one store. Of two each call is at whichever comes next.
    WeirShared {
        gateways: usize,
    },
}

/// Nothing decides anything: no credential is needed.
const NO_POLICY: &str = r#"auth = "none""#;
/// Both shipped components are in the path: `fallback` finds the transport, `bearer` attaches a token.
const SHIPPED: &str = r#"bearer = { env = "WEIR_BENCH_TOKEN" }"#;

/// The same once more. What it differs by is what a run cannot tell apart.
const AGAIN: &str = r#"bearer = { env = "WEIR_BENCH_TOKEN" }
"#;

/// The same with `oauth` in place of `bearer`: the token is from an authorization server and lies in the store.
const OAUTH: &str = r#"auth = "client_credentials"
oauth = { client_id = "bench", client_secret = { env = "WEIR_BENCH_TOKEN" } }"#;

/// The shipped policies, and room for a crowd.
const CROWDED: &str = r#"bearer = { env = "WEIR_BENCH_TOKEN" }

[limits]
connections = 16384
principal = { connections = 16384 }"#;

/// Each call is a record of the audit log.
const AUDITED: &str = r#"bearer = { env = "WEIR_BENCH_TOKEN" }

[audit]
path = "audit.jsonl""#;

/// As many calls are traced as may be by default. The upstream is the collector too.
const TRACED: &str = r#"bearer = { env = "WEIR_BENCH_TOKEN" }

[telemetry.otlp]
endpoint = "${env:WEIR_BENCH_COLLECTOR}""#;

/// Of 12,500 calls 200 are traced, however short a round is. The default gives back between rounds what may be traced at once.
const SHARE_TRACED: &str = r#"bearer = { env = "WEIR_BENCH_TOKEN" }

[telemetry.otlp]
endpoint = "${env:WEIR_BENCH_COLLECTOR}"
sample = 0.016
traces_per_second = 1_000_000"#;

/// Each call is traced, however many there are.
const EACH_TRACED: &str = r#"bearer = { env = "WEIR_BENCH_TOKEN" }

[telemetry.otlp]
endpoint = "${env:WEIR_BENCH_COLLECTOR}"
traces_per_second = 1_000_000"#;

/// Ten rules with a condition each: about the caller, about the call, about its arguments. The last one allows.
const TEN_RULES: &str = r#"
[[access.rules]]
when = "'team-1' in caller.groups"
[[access.rules]]
when = "caller.subject == 'nobody'"
[[access.rules]]
when = "caller.claims.department == 'sales'"
[[access.rules]]
when = "call.upstream == 'other'"
[[access.rules]]
when = "call.kind == 'prompt' && call.name == 'echo'"
[[access.rules]]
tools = ["read_*"]
when = "args.path.startsWith('/public/')"
[[access.rules]]
effect = "deny"
tools = ["delete_*"]
when = "args.force == true"
[[access.rules]]
effect = "deny"
when = "call.endpoint == 'closed'"
[[access.rules]]
effect = "deny"
when = "caller.subject == 'banned'"
[[access.rules]]
when = "args.payload.size() >= 0"
"#;

/// What the tokens of callers are for.
pub(crate) const AUDIENCE: &str = "bench";

/// What opens the store that gateways share.
const STORE_KEY: &str = "c2VjcmV0IGtleSBvZiB0aGUgc3RvcmUsIDMyIGJ5dGU=";

/// Where the upstream is called by its own names.
const ENDPOINT: &str = "/mcp/bench";

/// What every other row is compared to.
pub(crate) const FLOOR: Subject = Subject { name: "pingora floor", kind: Kind::Floor };

pub(crate) const SUBJECTS: &[Subject] = &[
    Subject { name: "direct", kind: Kind::Direct },
    FLOOR,
    Subject { name: "nginx", kind: Kind::Nginx },
    Subject { name: "weir, no policy", kind: Kind::Weir { settings: NO_POLICY, path: ENDPOINT, prefix: "" } },
    SHIPPED_POLICIES,
    Subject { name: "weir, shipped policies, again", kind: Kind::Weir { settings: AGAIN, path: ENDPOINT, prefix: "" } },
    Subject { name: "weir, login", kind: Kind::Weir { settings: OAUTH, path: "/mcp/bench", prefix: "" } },
    Subject { name: "weir, [auth]", kind: Kind::WeirProving { rules: "" } },
    Subject { name: "weir, [auth] and ten rules", kind: Kind::WeirProving { rules: TEN_RULES } },
    Subject { name: "weir, a policy, answer kept", kind: Kind::WeirDeciding { see: "facts", task: "keep" } },
    Subject { name: "weir, a policy, facts", kind: Kind::WeirDeciding { see: "facts", task: "label=x" } },
    Subject { name: "weir, a policy, body", kind: Kind::WeirDeciding { see: "body answers", task: "label=x" } },
    Subject { name: "weir, audit", kind: Kind::Weir { settings: AUDITED, path: ENDPOINT, prefix: "" } },
    Subject { name: "weir, metrics and traces", kind: Kind::Weir { settings: TRACED, path: ENDPOINT, prefix: "" } },
    Subject {
        name: "weir, metrics and a share traced",
        kind: Kind::Weir { settings: SHARE_TRACED, path: ENDPOINT, prefix: "" },
    },
    Subject {
        name: "weir, metrics and each call traced",
        kind: Kind::Weir { settings: EACH_TRACED, path: ENDPOINT, prefix: "" },
    },
    Subject {
        name: "weir, shipped policies, all at /mcp",
        kind: Kind::Weir { settings: SHIPPED, path: "/mcp", prefix: "bench__" },
    },
    Subject { name: "weir, translating", kind: Kind::WeirTranslating { path: ENDPOINT, prefix: "" } },
    Subject { name: "weir, translating, all at /mcp", kind: Kind::WeirTranslating { path: "/mcp", prefix: "bench__" } },
    Subject { name: "weir, SSE upstream", kind: Kind::WeirSse },
    Subject { name: "weir, stdio upstream", kind: Kind::WeirStdio },
    Subject { name: "weir, shared store", kind: Kind::WeirShared { gateways: 1 } },
    Subject { name: "weir, two gateways", kind: Kind::WeirShared { gateways: 2 } },
];

/// The configuration that start and memory are measured with.
pub(crate) const SHIPPED_POLICIES: Subject =
    Subject { name: "weir, shipped policies", kind: Kind::Weir { settings: SHIPPED, path: ENDPOINT, prefix: "" } };

/// The configuration that a crowd is measured with.
pub(crate) const WITH_A_CROWD: Subject =
    Subject { name: "weir, a crowd", kind: Kind::Weir { settings: CROWDED, path: "/mcp", prefix: "bench__" } };

/// Where things are for this run.
pub(crate) struct Place {
    /// A directory of this run only.
    pub(crate) dir: PathBuf,
    pub(crate) upstream: SocketAddr,
    /// The binaries under test, absent where they are not installed.
    pub(crate) weir: Option<PathBuf>,
    pub(crate) nginx: Option<PathBuf>,
    /// Where profiles are left, if instructions are counted instead of CPU time.
    pub(crate) instructions: Option<PathBuf>,
    /// What gateways share, absent where it is not installed.
    pub(crate) redis: Option<Redis>,
}

impl Place {
    /// The tables of a gateway that shares the store.
    pub(crate) fn shared(&self) -> Result<String> {
        let redis = self.redis.as_ref().context("there is no redis-server")?;
        let key = "{ env = \"WEIR_STORE_KEY\" }";
        Ok(format!(
            "[store]\nurl = \"redis://{}\"\nkey = {key}\n\n[replica]\nlisten = \"127.0.0.1:0\"",
            redis.address()
        ))
    }

    pub(crate) fn has(&self, subject: &Subject) -> bool {
        match subject.kind {
            // What all stand before is not started for one of them.
            Kind::Direct => self.instructions.is_none(),
            Kind::Floor => true,
            Kind::Nginx => self.nginx.is_some() && self.instructions.is_none(),
            Kind::Weir { .. }
            | Kind::WeirProving { .. }
            | Kind::WeirDeciding { .. }
            | Kind::WeirTranslating { .. }
            | Kind::WeirSse
            | Kind::WeirStdio => self.weir.is_some(),
            Kind::WeirShared { .. } => self.weir.is_some() && self.redis.is_some(),
        }
    }
}

/// The subjects without what another does besides, which may be nothing: one that translates at an upstream of its client's
/// era, a login with a fixed token, and callers whom nobody asks who they are. The first that is measured counts.
pub(crate) fn without(subject: &str) -> Vec<&'static str> {
    let path = match SUBJECTS.iter().find(|known| known.name == subject).map(|known| known.kind) {
        Some(Kind::WeirTranslating { path, .. } | Kind::Weir { settings: OAUTH, path, .. }) => path,
        Some(Kind::Weir { settings: AGAIN | AUDITED | TRACED | SHARE_TRACED | EACH_TRACED, .. }) => ENDPOINT,
        Some(Kind::WeirProving { .. } | Kind::WeirDeciding { .. } | Kind::WeirShared { .. }) => ENDPOINT,
        _ => return Vec::new(),
    };
    let same = |kind: Kind| matches!(kind, Kind::Weir { settings: SHIPPED | AGAIN, path: at, .. } if at == path);
    let others = SUBJECTS.iter().filter(|other| same(other.kind) && other.name != subject);
    others.map(|other| other.name).collect()
}

impl Subject {
    /// Whether it serves clients of that era.
    pub(crate) fn speaks(&self, era: Era) -> bool {
        self.kind != Kind::WeirSse || era == Era::Legacy
    }
}

/// A subject that answers.
pub(crate) struct Running {
    /// None for the upstream, which is not ours to end.
    pub(crate) process: Option<Process>,
    /// Other gateways at its store.
    pub(crate) others: Vec<Process>,
    pub(crate) target: Target,
    /// From the start of the process to the end of its first answer.
    pub(crate) took: Duration,
}

/// Starts `subject` in front of the upstream of that era with that many tools and waits for its first right answer.
pub(crate) async fn start(place: &Place, subject: &Subject, era: Era, tools: usize) -> Result<Running> {
    let path = format!("/{era}/{tools}");
    let mut target = Target { address: free_address()?, path: path.clone(), prefix: "", token: None, other: None };
    let mut others = Vec::new();
    let command = match subject.kind {
        Kind::Direct => {
            target.address = place.upstream;
            None
        }
        Kind::Floor => Some(floor(place, target.address)?),
        Kind::Nginx => Some(nginx(place, target.address)?),
        Kind::Weir { settings, path: endpoint, prefix } => {
            let reach = format!("url = \"http://{}{path}\"\n{settings}", place.upstream);
            let command = weir(place, target.address, &reach)?;
            target.path = endpoint.to_owned();
            target.prefix = prefix;
            Some(command)
        }
        Kind::WeirProving { rules } => {
            let auth = format!("[auth]\nissuer = \"http://{}\"\naudience = \"{AUDIENCE}\"\n{rules}", place.upstream);
            let reach = format!("url = \"http://{}{path}\"\n{SHIPPED}\n\n{auth}", place.upstream);
            target.path = ENDPOINT.to_owned();
            target.token = Some(Connection::open_at(place.upstream).await?.get("/caller").await?);
            Some(weir(place, target.address, &reach)?)
        }
        Kind::WeirDeciding { see, task } => {
            let component = place.dir.join("judge.wasm");
            std::fs::write(&component, weir_guests::JUDGE)?;
            let grants = "grants = [\"clock\", \"store\"]";
            let policy = format!("component = {component:?}\n{grants}\nsettings = {{ see = {see:?}, do = {task:?} }}");
            let reach = format!(
                "url = \"http://{}{path}\"\n{SHIPPED}\n\n[[upstreams.bench.policies]]\n{policy}",
                place.upstream
            );
            target.path = ENDPOINT.to_owned();
            Some(weir(place, target.address, &reach)?)
        }
        Kind::WeirTranslating { path: endpoint, prefix } => {
            let other = if era == Era::Legacy { Era::Modern } else { Era::Legacy };
            let reach = format!("url = \"http://{}/{other}/{tools}\"\n{SHIPPED}", place.upstream);
            target.path = endpoint.to_owned();
            target.prefix = prefix;
            Some(weir(place, target.address, &reach)?)
        }
        Kind::WeirSse => {
            let url = format!("http://{}/sse/{tools}", place.upstream);
            let reach = format!("url = \"{url}\"\ntype = \"sse\"\n{SHIPPED}");
            target.path = ENDPOINT.to_owned();
            Some(weir(place, target.address, &reach)?)
        }
        Kind::WeirStdio => {
            let program = std::env::current_exe()?;
            let arguments = format!("args = [\"stdio\", \"{era}\", \"{tools}\"]\nshared = true");
            let reach = format!("command = \"{}\"\n{arguments}", program.display());
            target.path = ENDPOINT.to_owned();
            Some(weir(place, target.address, &reach)?)
        }
        Kind::WeirShared { gateways } => {
            let reach = format!("url = \"http://{}{path}\"\n{SHIPPED}\n\n{}", place.upstream, place.shared()?);
            target.path = ENDPOINT.to_owned();
            if gateways > 1 {
                target.other = Some(free_address()?);
                others.push(beside(place, &target, &reach, era, tools).await?);
            }
            Some(weir(place, target.address, &reach)?)
        }
    };
    let begin = Instant::now();
    let Some(mut command) = command else {
        let client = first_answer(&target, era, tools, (None, READY_LIMIT)).await?;
        return running(None, others, target, begin, client).await;
    };
    let mut limit = READY_LIMIT;
    if let Some(dir) = &place.instructions {
        // Once without, so that no policy is compiled where each instruction takes fifty times as long.
        let mut warm = Process::start(&mut command)?;
        first_answer(&target, era, tools, (Some(&mut warm), READY_LIMIT)).await?.close().await?;
        drop(warm);
        (command, limit) = (process::counted(&command, dir), COUNTED_READY_LIMIT);
    }
    let mut process = Process::start(&mut command)?;
    let client = match first_answer(&target, era, tools, (Some(&mut process), limit)).await {
        Ok(client) => client,
        Err(error) => {
            drop(process);
            let said = process::last_words(&mut command, &place.dir)?;
            return Err(error.context(format!("{}\n{said}", shown(&command))));
        }
    };
    running(Some(process), others, target, begin, client).await
}

/// Another gateway at the same store, once it answers.
async fn beside(place: &Place, target: &Target, reach: &str, era: Era, tools: usize) -> Result<Process> {
    let address = target.other.context("it has an address")?;
    let process = Process::start(&mut weir(place, address, reach)?)?;
    let own = Target { address, other: None, ..target.clone() };
    first_answer(&own, era, tools, (None, READY_LIMIT)).await?.close().await?;
    Ok(process)
}

async fn running(
    process: Option<Process>,
    others: Vec<Process>,
    target: Target,
    begin: Instant,
    client: Client,
) -> Result<Running> {
    let took = begin.elapsed();
    client.close().await?;
    Ok(Running { process, others, target, took })
}

/// Asks for the list until it comes and is whole.
pub(crate) async fn first_answer(
    target: &Target,
    era: Era,
    tools: usize,
    (mut process, limit): (Option<&mut Process>, Duration),
) -> Result<Client> {
    let begin = Instant::now();
    loop {
        let error = match Client::open(target, era, Workload::List(tools)).await {
            Ok(client) => return Ok(client),
            Err(error) => error,
        };
        if let Some(process) = &mut process {
            process.still_running()?;
        }
        if begin.elapsed() > limit {
            return Err(error.context(format!("gave no right answer within {limit:?}")));
        }
        tokio::time::sleep(Duration::from_micros(500)).await;
    }
}

fn floor(place: &Place, address: SocketAddr) -> Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["floor", &address.port().to_string(), &place.upstream.to_string()]);
    Ok(command)
}

pub(crate) fn weir(place: &Place, address: SocketAddr, reach: &str) -> Result<Command> {
    let Some(binary) = &place.weir else { bail!("there is no weir binary") };
    let file = place.dir.join(format!("weir-{}.toml", address.port()));
    let text = format!("listen = \"{address}\"\n\n[upstreams.bench]\n{reach}\n");
    std::fs::write(&file, text)?;
    let mut command = Command::new(binary);
    command.args(["serve", "--config"]).arg(&file);
    command.env("WEIR_BENCH_TOKEN", "not-a-secret").env("WEIR_STORE_KEY", STORE_KEY);
    command.env("WEIR_BENCH_COLLECTOR", format!("http://{}", place.upstream));
    // The cache of compiled policies is this run's own: cold once, warm from then on.
    command.env("XDG_CACHE_HOME", place.dir.join("cache")).env("XDG_STATE_HOME", place.dir.join("state"));
    Ok(command)
}

fn nginx(place: &Place, address: SocketAddr) -> Result<Command> {
    let Some(binary) = &place.nginx else { bail!("there is no nginx") };
    let dir = place.dir.join(format!("nginx-{}", address.port()));
    std::fs::create_dir_all(&dir)?;
    let file = dir.join("nginx.conf");
    std::fs::write(&file, nginx_conf(&dir, address, place.upstream))?;
    let mut command = Command::new(binary);
    command.arg("-p").arg(&dir).arg("-c").arg(&file).args(["-e", "stderr"]);
    Ok(command)
}

fn nginx_conf(dir: &Path, address: SocketAddr, upstream: SocketAddr) -> String {
    let dir = dir.display();
    format!(
        "daemon off;\nworker_processes 2;\npid {dir}/pid;\nerror_log /dev/null;\n\
         events {{ worker_connections 1024; }}\n\
         http {{\n  access_log off;\n  keepalive_requests 1000000000;\n  client_max_body_size 16m;\n  \
         client_body_buffer_size 1m;\n  client_body_temp_path {dir}/body;\n  proxy_temp_path {dir}/proxy;\n  \
         fastcgi_temp_path {dir}/fastcgi;\n  uwsgi_temp_path {dir}/uwsgi;\n  scgi_temp_path {dir}/scgi;\n  \
         upstream bench {{ server {upstream}; keepalive 128; keepalive_requests 1000000000; }}\n  \
         server {{\n    listen {address};\n    location / {{\n      proxy_pass http://bench;\n      \
         proxy_http_version 1.1;\n      proxy_set_header Connection \"\";\n      proxy_buffering off;\n    }}\n  }}\n}}\n"
    )
}
