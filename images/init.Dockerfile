# linkerd-init. The file has the capabilities that setting redirects takes, so that it need
# not run as root; its container grants them, or it does not start.
FROM rust:1.92-alpine AS build
RUN apk add --no-cache build-base cmake perl linux-headers libcap-setcap
WORKDIR /src
COPY . .
RUN cargo build --locked --profile dist -p weft-proxy \
    && cp target/dist/weft-proxy /weft-init \
    && setcap cap_net_admin,cap_net_raw+eip /weft-init

FROM gcr.io/distroless/static-debian13:nonroot
COPY --from=build /weft-init /usr/local/bin/weft-init
USER 65534:65534
ENTRYPOINT ["/usr/local/bin/weft-init"]
CMD ["proxy-init"]
