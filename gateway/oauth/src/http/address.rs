//! Which addresses a URL from outside may lead to.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Where an address is, as far as that matters here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AddressKind {
    Public,
    Loopback,
    /// In a network of its owner (RFC 1918, RFC 4193, RFC 6598).
    Private,
    /// Nowhere that serves a token: link-local with the metadata services of clouds, multicast, reserved.
    Never,
}

/// Metadata services of clouds that are not link-local: Alibaba Cloud, Azure's wire server, AWS over IPv6.
const METADATA: [IpAddr; 3] = [
    IpAddr::V4(Ipv4Addr::new(100, 100, 100, 200)),
    IpAddr::V4(Ipv4Addr::new(168, 63, 129, 16)),
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0x0ec2, 0, 0, 0, 0, 0, 0x0254)),
];

/// Where `address` is. An IPv4 address in IPv6 clothes is where the IPv4 address is.
pub(super) fn place(address: IpAddr) -> AddressKind {
    if METADATA.contains(&address) {
        return AddressKind::Never;
    }
    match address {
        IpAddr::V4(address) => place4(address),
        IpAddr::V6(address) => match embedded(address) {
            Some(inner) => place(IpAddr::V4(inner)),
            None => place6(address),
        },
    }
}

fn place4(address: Ipv4Addr) -> AddressKind {
    let [a, b, c, _] = address.octets();
    match (a, b, c) {
        (127, ..) => AddressKind::Loopback,
        (10, ..) | (192, 168, _) => AddressKind::Private,
        (172, b, _) if b & 0xf0 == 16 => AddressKind::Private,
        // Carrier-grade NAT, also the inside of some overlay networks.
        (100, b, _) if b & 0xc0 == 64 => AddressKind::Private,
        // This network, link-local, protocol assignments, documentation, 6to4 relays, benchmarks.
        (0, ..) | (169, 254, _) | (192, 0, 0 | 2) | (192, 88, 99) | (198, 51, 100) | (203, 0, 113) => {
            AddressKind::Never
        }
        (198, b, _) if b & 0xfe == 18 => AddressKind::Never,
        // Multicast, reserved, broadcast.
        (224.., ..) => AddressKind::Never,
        _ => AddressKind::Public,
    }
}

fn place6(address: Ipv6Addr) -> AddressKind {
    if address == Ipv6Addr::LOCALHOST {
        return AddressKind::Loopback;
    }
    match address.segments() {
        [first, ..] if first & 0xfe00 == 0xfc00 => AddressKind::Private,
        // Translated at this site (RFC 8215). Where in it the IPv4 address stands is known to its translator alone.
        [0x64, 0xff9b, 1, ..] => AddressKind::Never,
        // Documentation, Teredo, ORCHID, benchmarks: inside the global range, and never a server.
        [0x2001, 0x0db8, ..] | [0x2001, 0..0x0200, ..] | [0x3fff, 0..0x1000, ..] => AddressKind::Never,
        // The global range; all others are link-local, site-local, multicast or unassigned.
        [first, ..] if first & 0xe000 == 0x2000 => AddressKind::Public,
        _ => AddressKind::Never,
    }
}

/// The IPv4 address to which packets for this one go: mapped (RFC 4291), translated (RFC 6052), 6to4 (RFC 3056).
fn embedded(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let v4 = |high: u16, low: u16| {
        let ([a, b], [c, d]) = (high.to_be_bytes(), low.to_be_bytes());
        Ipv4Addr::new(a, b, c, d)
    };
    match address.segments() {
        [0, 0, 0, 0, 0, 0xffff, high, low]
        | [0, 0, 0, 0, 0xffff, 0, high, low]
        | [0x64, 0xff9b, 0, 0, 0, 0, high, low]
        | [0x2002, high, low, ..] => Some(v4(high, low)),
        // The old compatible form; `::` and `::1` are what they are.
        [0, 0, 0, 0, 0, 0, high, low] if high != 0 => Some(v4(high, low)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

    use super::*;

    #[test]
    fn each_address_is_where_its_packets_go() {
        for (place_of, addresses) in [
            (
                AddressKind::Public,
                "8.8.8.8 1.1.1.1 172.15.0.1 172.32.0.1 100.63.0.1 100.128.0.1 2606:4700::1111 2a00::1",
            ),
            (AddressKind::Public, "::ffff:8.8.8.8 64:ff9b::8.8.8.8 2002:808:808::1"),
            (AddressKind::Loopback, "127.0.0.1 127.255.255.254 ::1 ::ffff:127.0.0.1 64:ff9b::127.0.0.1 ::127.0.0.1"),
            (AddressKind::Loopback, "2002:7f00:1::"),
            (
                AddressKind::Private,
                "10.0.0.1 172.16.0.1 172.31.255.255 192.168.1.1 100.64.0.1 100.127.255.255 fd00::1 fc00::1",
            ),
            (AddressKind::Private, "::ffff:10.0.0.1 64:ff9b::10.0.0.1"),
            (AddressKind::Never, "64:ff9b:1::10.0.0.1 64:ff9b:1:0:a:0:100:808 64:ff9b:1::8.8.8.8"),
            (
                AddressKind::Never,
                "0.0.0.0 169.254.169.254 ::ffff:169.254.169.254 ::ffff:a9fe:a9fe 224.0.0.1 255.255.255.255",
            ),
            (AddressKind::Never, "240.0.0.1 192.0.2.1 198.18.0.1 198.51.100.1 203.0.113.1 fe80::1 fec0::1 ff02::1 ::"),
            (
                AddressKind::Never,
                "100.100.100.200 168.63.129.16 fd00:ec2::254 2001:db8::1 2001::1 ::ffff:100.100.100.200",
            ),
        ] {
            for address in addresses.split(' ') {
                assert_eq!(place(address.parse().unwrap()), place_of, "{address}");
            }
        }
    }
}
