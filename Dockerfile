# The image of "make release", built by Docker: docker build -t stint .
# With --build-arg VERSION=v0.1.0, COMMIT and DATE, "stint version" says what it is.

FROM --platform=$BUILDPLATFORM node:22-bookworm-slim AS web
WORKDIR /src/web
COPY web/package.json web/package-lock.json ./
RUN npm ci --no-audit --no-fund
COPY web ./
RUN npm run --silent build

FROM --platform=$BUILDPLATFORM golang:1.26-bookworm AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
COPY --from=web /src/web/dist web/dist
ARG TARGETOS TARGETARCH VERSION COMMIT DATE
RUN CGO_ENABLED=0 GOOS=$TARGETOS GOARCH=$TARGETARCH go build -trimpath -buildvcs=false -tags grpcnotrace \
	-ldflags "-s -w -buildid= -X main.version=$VERSION -X main.commit=$COMMIT -X main.date=$DATE" -o /image/bin/stint ./cmd/stint
RUN ln -s stint /image/bin/ratelimit && \
	mkdir -p /image/etc/ssl/certs /image/etc/stint /image/tmp /state && \
	cp /etc/ssl/certs/ca-certificates.crt /image/etc/ssl/certs/ && \
	cp deploy/image/stint.toml /image/etc/stint/ && \
	printf 'root:x:0:\nstint:x:65532:\n' >/image/etc/group && \
	printf 'root:x:0:0:root:/:/sbin/nologin\nstint:x:65532:65532:Stint:/var/lib/stint:/sbin/nologin\n' >/image/etc/passwd && \
	chmod 1777 /image/tmp

FROM scratch
ARG VERSION COMMIT DATE
LABEL org.opencontainers.image.title="Stint" \
	org.opencontainers.image.description="Rate limiter for APIs" \
	org.opencontainers.image.version="$VERSION" \
	org.opencontainers.image.revision="$COMMIT" \
	org.opencontainers.image.created="$DATE" \
	org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /image /
COPY --from=build --chown=65532:65532 /state /var/lib/stint
USER 65532:65532
ENV PATH=/bin STINT_CONFIG=/etc/stint/stint.toml STATE_DIRECTORY=/var/lib/stint
WORKDIR /var/lib/stint
VOLUME /var/lib/stint
EXPOSE 8000 8080 8081
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s --retries=3 CMD ["/bin/stint", "health"]
ENTRYPOINT ["/bin/stint"]
CMD ["serve"]
