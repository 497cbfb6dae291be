module github.com/stintdev/stint

go 1.26

require (
	github.com/MicahParks/jwkset v0.11.3
	github.com/anishathalye/porcupine v1.3.1
	github.com/golang-jwt/jwt/v5 v5.3.1
	github.com/pelletier/go-toml/v2 v2.4.3
	github.com/redis/rueidis v1.0.79
	pgregory.net/rapid v1.3.0
)

require (
	golang.org/x/sys v0.47.0 // indirect
	golang.org/x/time v0.15.0 // indirect
)
