# The image of Weir: one binary and certificates, no shell, not root. `docker build -t weir .`
#
# It writes to /var/lib/weir (logins) and /var/cache/weir (compiled policies) alone; the rest may be read-only.

FROM rust:1-bookworm AS build
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends cmake \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY . .
# Policies are built for WebAssembly on the way; rust-toolchain.toml names the targets.
RUN cargo build --release --locked --bin weir \
    && install -D -m 0755 target/release/weir /out/usr/bin/weir \
    && install -d -m 0700 /out/var/lib/weir /out/var/cache/weir
# What the binary brings along is compiled here. A machine with another processor compiles it again.
RUN XDG_CACHE_HOME=/out/var/cache target/release/weir policy compile \
    weir:fallback weir:bearer weir:oauth weir:interceptor weir:pin weir:redact weir:schema weir:shape

FROM gcr.io/distroless/cc-debian12:nonroot
LABEL org.opencontainers.image.title="Weir" \
      org.opencontainers.image.description="One address for all of a team's MCP servers" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /out/usr/bin/weir /usr/bin/weir
# What is in a folder keeps its mode; the folder named here would become 0755, and Weir refuses a cache that others may enter.
COPY --from=build --chown=65532:65532 /out/var/lib /var/lib
COPY --from=build --chown=65532:65532 /out/var/cache /var/cache
ENV XDG_STATE_HOME=/var/lib XDG_CACHE_HOME=/var/cache
WORKDIR /var/lib/weir
USER 65532:65532
VOLUME ["/var/lib/weir"]
EXPOSE 8080
STOPSIGNAL SIGTERM
# Upstreams that are down are no reason to restart Weir.
HEALTHCHECK --interval=30s --timeout=5s --start-period=60s \
    CMD ["/usr/bin/weir", "status", "--alive", "--config", "/etc/weir/weir.toml"]
ENTRYPOINT ["/usr/bin/weir"]
CMD ["serve", "--config", "/etc/weir/weir.toml"]
