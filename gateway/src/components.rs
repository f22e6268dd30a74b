//! Components that come over the network: fetched once, kept beside the compiled code, and compared with their digest each
//! time they are read.

mod registry_login;

use std::{
    fs, io,
    io::Write,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use oci_client::{
    Client, Reference,
    client::{ClientConfig, ClientProtocol},
    manifest::{OciDescriptor, OciImageManifest},
};
use parking_lot::Mutex;
use thiserror::Error;
use tokio::time::timeout;
use url::Url;

use crate::config::{ComponentDigest, ComponentPlace, ComponentSigner, PolicyComponent, RemoteComponent, is_here};

/// The longest component, in bytes. One in Python has 18 MB.
const LONGEST: u64 = 64 << 20;
/// The longest manifest, in bytes: registries take no longer ones (OCI distribution specification 1.1, "Pushing manifests").
const LONGEST_MANIFEST: usize = 4 << 20;
/// The longest signature, in bytes. It has four lines.
const LONGEST_SIGNATURE: u64 = 8 << 10;
/// What follows the name of a component in the name of its signature.
const SIGNATURE: &str = ".minisig";
/// How long fetching a component may take.
const WHOLE: Duration = Duration::from_secs(120);
const CONNECT: Duration = Duration::from_secs(10);
/// Between two parts of an answer.
const READ: Duration = Duration::from_secs(30);
/// More redirects are a loop.
const REDIRECTS: usize = 5;
/// What registries call a component (CNCF TAG Runtime, "Wasm OCI Artifact layout").
const MEDIA_TYPES: [&str; 2] = ["application/wasm", "application/vnd.wasm.content.layer.v1+wasm"];
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";

/// Why there is no component.
#[derive(Debug, Error)]
pub enum ComponentError {
    #[error("{component} has no digest, so it may become another component at any time; `weir policy lock` pins it")]
    Unpinned { component: String },
    #[error(
        "{component} is {found}, not {expected}; if it was changed on purpose, pin the new one: `weir policy lock --update`"
    )]
    Other { component: String, found: ComponentDigest, expected: ComponentDigest },
    #[error("{component} cannot be fetched: {why}")]
    Fetch { component: String, why: String },
    #[error("{component} is no policy: {why}")]
    Shape { component: String, why: String },
    #[error("{} cannot be written: {why}", path.display())]
    Keep { path: PathBuf, why: io::Error },
    #[error("{component} has no good signature by the key in `signed_by`: {why}")]
    Unsigned { component: String, why: String },
}

/// A component that was fetched.
pub struct FetchedComponent {
    /// What pins it.
    pub digest: ComponentDigest,
    manifest: Option<Vec<u8>>,
    wasm: Vec<u8>,
}

impl FetchedComponent {
    /// Its bytes.
    #[must_use]
    pub fn into_wasm(self) -> Vec<u8> {
        self.wasm
    }
}

/// The components on this machine, by digest. Only what a configuration names comes in.
pub struct ComponentCache {
    /// None where nothing is kept.
    folder: Option<PathBuf>,
    /// Held by who fetches, so that upstreams with the same component fetch it once.
    fetching: Mutex<()>,
}

impl ComponentCache {
    /// The components in the folder for what can be made anew.
    #[must_use]
    pub fn new(cache: Option<&Path>) -> Self {
        Self { folder: cache.map(|cache| cache.join("components")), fetching: Mutex::default() }
    }

    /// The bytes of a component, which is fetched if it is not on this machine. It may take two minutes, and may be called
    /// where a runtime is at work.
    ///
    /// # Errors
    /// If it is not pinned, cannot be fetched, or is another one than it must be.
    pub fn read(&self, component: &RemoteComponent) -> Result<Vec<u8>, ComponentError> {
        let Some(digest) = &component.digest else {
            return Err(ComponentError::Unpinned { component: component.to_string() });
        };
        let cached = || self.cached(component, digest);
        if let Some(wasm) = cached() {
            return Ok(wasm);
        }
        let _fetching = self.fetching.lock();
        if let Some(wasm) = cached() {
            return Ok(wasm);
        }
        tracing::info!(%component, %digest, "fetching a component");
        let fetched = fetch_apart(component)?;
        if fetched.digest != *digest {
            let (component, found, expected) = (component.to_string(), fetched.digest, digest.clone());
            return Err(ComponentError::Other { component, found, expected });
        }
        self.keep(&fetched)?;
        Ok(fetched.wasm)
    }

    /// Compares a component with the signature beside it, which is fetched if it is not on this machine.
    ///
    /// # Errors
    /// If there is none, or it is not of these bytes by this key.
    pub fn verify(
        &self,
        component: &PolicyComponent,
        wasm: &[u8],
        signer: &ComponentSigner,
    ) -> Result<(), ComponentError> {
        let unsigned = |why: String| ComponentError::Unsigned { component: component.name(), why };
        match component {
            PolicyComponent::File(path) => {
                let path = signature_file(path);
                let signature =
                    fs::read_to_string(&path).map_err(|why| unsigned(format!("{}: {why}", path.display())))?;
                signer.verify(wasm, &signature).map_err(unsigned)
            }
            PolicyComponent::Remote(RemoteComponent { place: ComponentPlace::Url(url), .. }) => {
                let name = format!("{}{SIGNATURE}", ComponentDigest::of(wasm).hex());
                let kept = self.folder.as_ref().and_then(|folder| fs::read_to_string(folder.join(&name)).ok());
                if kept.is_some_and(|kept| signer.verify(wasm, &kept).is_ok()) {
                    return Ok(());
                }
                let mut url = url.clone();
                url.set_path(&format!("{}{SIGNATURE}", url.path()));
                let signature = apart(async { download(&url, LONGEST_SIGNATURE).await }).map_err(unsigned)?;
                let signature = String::from_utf8(signature).map_err(|_| unsigned("it is no text".to_owned()))?;
                signer.verify(wasm, &signature).map_err(unsigned)?;
                self.write(&name, signature.as_bytes())
            }
            PolicyComponent::Shipped(_) | PolicyComponent::Remote(_) => Err(unsigned("there is none".to_owned())),
        }
    }

    /// Keeps a component for the next time.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn keep(&self, fetched: &FetchedComponent) -> Result<(), ComponentError> {
        self.write(&format!("{}.wasm", ComponentDigest::of(&fetched.wasm).hex()), &fetched.wasm)?;
        let name = format!("{}.json", fetched.digest.hex());
        fetched.manifest.as_ref().map_or(Ok(()), |manifest| self.write(&name, manifest))
    }

    fn write(&self, name: &str, bytes: &[u8]) -> Result<(), ComponentError> {
        let Some(folder) = &self.folder else { return Ok(()) };
        let path = folder.join(name);
        replace(folder, &path, bytes).map_err(|why| ComponentError::Keep { path, why })
    }

    /// What is on this machine, if it is what it must be.
    fn cached(&self, component: &RemoteComponent, digest: &ComponentDigest) -> Option<Vec<u8>> {
        let folder = self.folder.as_ref()?;
        let read = |digest: &ComponentDigest, kind: &str| {
            let bytes = fs::read(folder.join(format!("{}.{kind}", digest.hex()))).ok()?;
            (ComponentDigest::of(&bytes) == *digest).then_some(bytes)
        };
        match &component.place {
            ComponentPlace::Url(_) => read(digest, "wasm"),
            ComponentPlace::Registry(_) => {
                let layer = layer(&read(digest, "json")?).ok()?;
                read(&layer.digest.parse().ok()?, "wasm")
            }
        }
    }
}

/// Where the signature of a component in a file is.
#[must_use]
pub fn signature_file(component: &Path) -> PathBuf {
    let mut path = component.as_os_str().to_owned();
    path.push(SIGNATURE);
    path.into()
}

/// Fetches a component on a thread of its own: whoever asks may be at work for a runtime.
///
/// # Errors
/// If it cannot be fetched.
pub fn fetch_apart(component: &RemoteComponent) -> Result<FetchedComponent, ComponentError> {
    let failed = |why: String| ComponentError::Fetch { component: component.to_string(), why };
    apart(async { Ok(fetch(component).await) }).map_err(failed)?
}

/// What comes of something on a thread of its own.
fn apart<T: Send>(work: impl Future<Output = Result<T, String>> + Send) -> Result<T, String> {
    // The clients below ask for the one of the process. Where there is one already, that is the same.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(|why| why.to_string())?;
    let done =
        std::thread::scope(|scope| scope.spawn(|| runtime.block_on(async { timeout(WHOLE, work).await })).join());
    let done = done.map_err(|_| "the thread that fetches it has ended".to_owned())?;
    done.unwrap_or_else(|_| Err(format!("it took more than {} s", WHOLE.as_secs())))
}

async fn fetch(component: &RemoteComponent) -> Result<FetchedComponent, ComponentError> {
    let fetched = match &component.place {
        ComponentPlace::Url(url) => from_url(url).await,
        // A tag may have moved on, and what is pinned is still there.
        ComponentPlace::Registry(reference) => match &component.digest {
            Some(digest) => from_registry(&reference.clone_with_digest(digest.to_string())).await,
            None => from_registry(reference).await,
        },
    };
    let failed = |why| ComponentError::Fetch { component: component.to_string(), why };
    let fetched = fetched.map_err(failed)?;
    // The magic number, and the layer of components (Component Model, binary format).
    if !fetched.wasm.starts_with(b"\0asm\x0d\0\x01\0") {
        let why = "it does not begin as a WebAssembly component".to_owned();
        return Err(ComponentError::Shape { component: component.to_string(), why });
    }
    Ok(fetched)
}

async fn from_url(url: &Url) -> Result<FetchedComponent, String> {
    let wasm = download(url, LONGEST).await?;
    Ok(FetchedComponent { digest: ComponentDigest::of(&wasm), manifest: None, wasm })
}

/// A file of at most so many bytes.
async fn download(url: &Url, longest: u64) -> Result<Vec<u8>, String> {
    // What is fetched over HTTPS does not come from elsewhere in the end.
    let is_secure = url.scheme() == "https";
    let redirects = reqwest::redirect::Policy::custom(move |attempt| match attempt.previous().len() {
        REDIRECTS.. => attempt.error("too many redirects"),
        _ if is_secure && attempt.url().scheme() != "https" => attempt.error("a redirect leaves HTTPS"),
        _ => attempt.follow(),
    });
    let client = reqwest::Client::builder().connect_timeout(CONNECT).read_timeout(READ).redirect(redirects).build();
    let client = client.map_err(|why| reason(&why))?;
    let mut answer = client.get(url.clone()).send().await.map_err(|why| reason(&why.without_url()))?;
    if !answer.status().is_success() {
        return Err(format!("the server answers {}", answer.status()));
    }
    let mut bytes = Vec::new();
    while let Some(part) = answer.chunk().await.map_err(|why| reason(&why.without_url()))? {
        bytes.extend_from_slice(&part);
        if bytes.len() as u64 > longest {
            return Err(too_long(longest));
        }
    }
    Ok(bytes)
}

async fn from_registry(reference: &Reference) -> Result<FetchedComponent, String> {
    let registry = reference.resolve_registry().to_owned();
    let plain = if is_here(&registry) { vec![registry.clone()] } else { Vec::new() };
    let client = Client::new(ClientConfig {
        protocol: ClientProtocol::HttpsExcept(plain),
        connect_timeout: Some(CONNECT),
        read_timeout: Some(READ),
        user_agent: concat!("weir/", env!("CARGO_PKG_VERSION")),
        ..ClientConfig::default()
    });
    let login = registry_login::find(&registry).await;
    let pulled = client.pull_manifest_raw(reference, &login.auth, &[MANIFEST]).await;
    let (manifest, _) = pulled.map_err(|why| match login.problem {
        Some(problem) => format!("{}; {problem}", reason(&why)),
        None => reason(&why),
    })?;
    let layer = layer(&manifest)?;
    let mut wasm = Vec::new();
    client.pull_blob(reference, &layer, &mut wasm).await.map_err(|why| reason(&why))?;
    if ComponentDigest::of(&wasm).to_string() != layer.digest {
        return Err("the registry sends other bytes than its manifest names".to_owned());
    }
    Ok(FetchedComponent { digest: ComponentDigest::of(&manifest), manifest: Some(manifest.to_vec()), wasm })
}

/// The layer of a manifest that is the component.
fn layer(manifest: &[u8]) -> Result<OciDescriptor, String> {
    if manifest.len() > LONGEST_MANIFEST {
        return Err("its manifest is longer than 4 MiB".to_owned());
    }
    let manifest: OciImageManifest =
        serde_json::from_slice(manifest).map_err(|_| "the artifact has no image manifest".to_owned())?;
    let mut layers = manifest.layers.into_iter().filter(|layer| MEDIA_TYPES.contains(&&*layer.media_type));
    match (layers.next(), layers.next()) {
        (Some(layer), None) if u64::try_from(layer.size).is_ok_and(|size| size <= LONGEST) => Ok(layer),
        (Some(_), None) => Err(too_long(LONGEST)),
        (Some(_), Some(_)) => Err("the artifact has several layers of WebAssembly".to_owned()),
        (None, _) => Err(format!("the artifact has no layer of the type {}", MEDIA_TYPES[0])),
    }
}

fn too_long(longest: u64) -> String {
    match longest >> 20 {
        0 => format!("it is longer than {} KiB", longest >> 10),
        longest => format!("it is longer than {longest} MiB"),
    }
}

/// An error and what caused it, in one line.
fn reason(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    let texts: Vec<String> = causes.map(ToString::to_string).collect();
    texts.join(": ").lines().next().unwrap_or_default().chars().take(400).collect()
}

/// Writes a file whole, or not at all.
fn replace(folder: &Path, path: &Path, bytes: &[u8]) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let other = path.with_extension(format!("{}-{number}", std::process::id()));
    fs::File::create(&other)?.write_all(bytes)?;
    fs::rename(&other, path)
}
