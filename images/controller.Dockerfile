# The controller, and every command.
FROM rust:1.92-alpine AS build
RUN apk add --no-cache build-base cmake perl linux-headers
WORKDIR /src
COPY . .
RUN cargo build --locked --profile dist -p weft && cp target/dist/weft /weft

FROM gcr.io/distroless/static-debian13:nonroot
COPY --from=build /weft /usr/local/bin/weft
USER 2103:2103
ENTRYPOINT ["/usr/local/bin/weft"]
CMD ["controller"]
