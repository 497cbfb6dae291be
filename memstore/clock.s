// With assembly in the package, the compiler accepts functions without a body: nanotime is the
// runtime's.
