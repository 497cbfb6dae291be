package web

// Pick is pick, for a tree where the dashboard is built and one where it is not.
var Pick = pick
