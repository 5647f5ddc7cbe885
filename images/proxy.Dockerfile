# The proxy, and `await`, which holds up a pod's other containers until it is ready.
FROM rust:1.92-alpine AS build
RUN apk add --no-cache build-base cmake perl linux-headers
WORKDIR /src
COPY . .
RUN cargo build --locked --profile dist -p weft-proxy && cp target/dist/weft-proxy /weft-proxy

FROM gcr.io/distroless/static-debian13:nonroot
COPY --from=build /weft-proxy /usr/local/bin/weft-proxy
USER 2102:2102
ENTRYPOINT ["/usr/local/bin/weft-proxy"]
CMD ["proxy"]
