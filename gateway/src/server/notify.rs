//! Tells the service manager how Weir stands: the protocol of sd_notify(3), for units of `Type=notify` and
//! `Type=notify-reload`.

use std::{
    env, io,
    os::{
        linux::net::SocketAddrExt,
        unix::{
            ffi::OsStrExt,
            net::{SocketAddr, UnixDatagram},
        },
    },
};

use rustix::time::{ClockId, clock_gettime};

/// Weir accepts connections. This process is the main one from now on, also where another started it for an upgrade.
pub fn ready() {
    send(&format!("READY=1\nMAINPID={}\nSTATUS=Weir accepts connections", std::process::id()));
}

/// Weir reads its configuration again, until it is [`ready`].
pub fn reloading() {
    let now = clock_gettime(ClockId::Monotonic);
    let micros = now.tv_sec.unsigned_abs() * 1_000_000 + now.tv_nsec.unsigned_abs() / 1_000;
    send(&format!("RELOADING=1\nMONOTONIC_USEC={micros}"));
}

/// Weir finishes what runs, and ends.
pub fn stopping() {
    send("STOPPING=1\nSTATUS=Running calls may finish");
}

/// Does nothing where no service manager listens.
fn send(state: &str) {
    let Some(path) = env::var_os("NOTIFY_SOCKET") else { return };
    let sent = (|| -> io::Result<usize> {
        let address = match path.as_bytes() {
            [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
            _ => SocketAddr::from_pathname(&path)?,
        };
        let socket = UnixDatagram::unbound()?;
        socket.set_nonblocking(true)?;
        socket.send_to_addr(state.as_bytes(), &address)
    })();
    if let Err(why) = sent {
        tracing::warn!("the service manager cannot be told that {}: {why}", state.lines().next().unwrap_or_default());
    }
}
