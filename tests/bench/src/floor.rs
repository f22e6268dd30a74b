//! The floor: the least that a proxy built on pingora's own `ProxyHttp` does, and so what every other row is compared to.

use async_trait::async_trait;
use pingora_core::server::Server;
use pingora_core::server::configuration::ServerConf;
use pingora_core::upstreams::peer::HttpPeer;
use pingora_proxy::{ProxyHttp, Session, http_proxy_service};
use std::net::SocketAddr;

/// Threads that carry requests.
const THREADS: usize = 2;

/// Passes everything from `127.0.0.1:port` on to `upstream` until the process ends.
pub(crate) fn serve(port: u16, upstream: SocketAddr) {
    let conf = ServerConf { threads: THREADS, ..ServerConf::default() };
    let mut server = Server::new_with_opt_and_conf(None, conf);
    server.bootstrap();
    let mut service = http_proxy_service(&server.configuration, PassThrough { upstream });
    service.add_tcp(&format!("127.0.0.1:{port}"));
    server.add_service(service);
    server.run_forever();
}

struct PassThrough {
    upstream: SocketAddr,
}

#[async_trait]
impl ProxyHttp for PassThrough {
    type CTX = ();

    fn new_ctx(&self) {}

    async fn upstream_peer(&self, _: &mut Session, _: &mut ()) -> pingora_core::Result<Box<HttpPeer>> {
        Ok(Box::new(HttpPeer::new(self.upstream, false, String::new())))
    }
}
