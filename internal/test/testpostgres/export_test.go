package testpostgres

// Binaries is tested separately: every machine that runs the tests has PostgreSQL.
var Binaries = binaries
