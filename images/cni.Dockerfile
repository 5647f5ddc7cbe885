# The CNI plugin, its installer and its repair controller. The installer copies the program to the node, where it must
# run without anything beside it: it is linked with musl.
FROM rust:1.92-alpine AS build
RUN apk add --no-cache build-base cmake perl linux-headers
WORKDIR /src
COPY . .
RUN cargo build --locked --profile dist -p weft-cni \
    && cp target/dist/weft-cni /weft-cni

FROM gcr.io/distroless/static-debian13:nonroot
COPY --from=build /weft-cni /usr/local/bin/weft-cni
USER 65534:65534
ENTRYPOINT ["/usr/local/bin/weft-cni"]
CMD ["repair"]
