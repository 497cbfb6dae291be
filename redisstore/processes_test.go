package redisstore_test

const workerURL = "STINT_TEST_WORKER"

func work(string) int { return 0 }
