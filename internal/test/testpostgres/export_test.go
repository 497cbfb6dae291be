package testpostgres

// Binaries is tested on its own: whoever runs the tests has PostgreSQL.
var Binaries = binaries
