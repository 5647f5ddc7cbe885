# tshark beside an application: kubectl exec -it POD -c linkerd-debug -- tshark -i any -f 'tcp port 8080'
FROM debian:trixie-slim
RUN apt-get update \
    && apt-get install -y --no-install-recommends tshark tcpdump iproute2 nftables curl ca-certificates dnsutils \
    && rm -rf /var/lib/apt/lists/*
ENTRYPOINT ["tshark", "-i", "any"]
