"""The same tests for both clients, against real servers."""

import asyncio
import concurrent.futures
import os
import ssl
import subprocess
import sys
import threading
import time
import unittest

import stint
from world import ONE, PATIENCE, RECEIPT, TOKENS, VERDICT, False_, Loop, Server, Threads, http, problem

ALICE = stint.Check(path="/", user="alice")


class Both:
    """Tests of a client, and what they need."""

    run_with = None

    def setUp(self):
        self.do = self.run_with()
        self.addCleanup(self.do.close)

    def client(self, url, **options):
        options.setdefault("timeout", PATIENCE)  # the machine may be busy
        client = self.do.kind(url, **options)
        self.addCleanup(lambda: self.do(client.close()))
        return client

    def false(self, *answers):
        server = False_(*answers)
        self.addCleanup(server.close)
        return server

    def until(self, check, what):
        end = time.monotonic() + PATIENCE
        while not check():
            self.assertLess(time.monotonic(), end, what)
            self.do.idle()

    def test_check(self):
        c = self.client(Server().url)
        peek = self.do(c.check(stint.Check(path="/", user="alice", peek=True)))
        self.assertEqual((peek.remaining, peek.failure), (3, None))
        for left in (2, 1, 0):
            v = self.do(c.check(ALICE))
            self.assertEqual((v.allowed, v.outcome, v.rule, v.limit, v.remaining), (True, "allowed", "users", 3, left))
        v = self.do(c.check(ALICE))
        self.assertEqual((v.allowed, v.outcome, v.status, v.remaining, v.limits[0].name), (False, "denied", 429, 0, "hourly"))
        self.assertGreater(v.retry_after, 0)
        self.assertEqual(v.headers["X-RateLimit-Limit"], "3")
        status, headers, body = v.response()
        self.assertEqual((status, headers["Content-Type"]), (429, "application/problem+json"))
        self.assertIn("Retry-After", headers)
        self.assertIn(b"quota-exceeded", body)
        with self.assertRaisesRegex(ValueError, "may pass"):
            peek.response()
        self.assertIsNone(self.do(c.check(stint.Check(path="/", user="bob", cost=4))).retry_after)
        self.assertEqual(c.stats, stint.Stats(0, 0, False))

    def test_batch(self):
        c = self.client(Server().url)
        got = self.do(c.check_batch([ALICE] * 5 + [stint.Check(path="/" + "x" * 9000)]))
        self.assertEqual(sum(v.allowed for v in got), 3)
        self.assertEqual((got[5].allowed, got[5].status, got[5].failure.status), (False, 414, 414))
        with self.assertRaises(stint.CallError) as caught:
            self.do(c.check_batch([ALICE, stint.Check(path="/", cost=0)]))
        self.assertEqual(caught.exception.field, "requests[1].cost")

    def test_bad_input(self):
        c = self.client(Server().url)
        for ask, field in [
            (stint.Check(path="search"), "path"), (stint.Check(path="/", ip="nowhere"), "ip"), (stint.Check(path="/", method="get"), "method"),
            (stint.Check(path="/", cost=1.5), "cost"), (stint.Check(path="/", headers={"X": 1}), "headers.X"),
        ]:
            with self.assertRaises(stint.CallError) as caught:
                self.do(c.check(ask))
            self.assertEqual((caught.exception.status, caught.exception.field), (400, field), caught.exception)
        with self.assertRaisesRegex(TypeError, "^user: "):
            self.do(c.check(stint.Check(path="/", user=b"alice")))
        with self.assertRaisesRegex(stint.CallError, "ticket"):
            self.do(c.cancel(stint.Cancel("AAAA")))
        for name, value in {"url": "localhost:8080", "timeout": 0, "fail_mode": "ajar", "token": "a b", "breaker_failures": 0}.items():
            with self.assertRaisesRegex(ValueError, f"^{name}: "):
                self.client(**{"url": "http://127.0.0.1:1", name: value})
        self.assertEqual(c.stats.undecided, 0)

    def test_take_and_usage(self):
        c = self.client(Server().url)
        ask = stint.Ask("user:42", "10/1h fixed_window", name="mails", cost=4)
        self.assertEqual([self.do(c.take(ask)).allowed for _ in range(3)], [True, True, False])
        both = self.do(c.take(ask, stint.Ask("user:43", "10/1h fixed_window")))
        self.assertEqual((both.allowed, both.limits[1].remaining), (False, 10))
        self.do(c.check(ALICE))
        self.assertEqual([(limit.name, limit.remaining) for limit in self.do(c.usage(user="alice"))], [("hourly", 2)])
        with self.assertRaisesRegex(stint.CallError, "want one of user"):
            self.do(c.usage())

    def remaining(self, c, user="alice"):
        return self.do(c.usage(user=user))[0].remaining

    def test_reserve(self):
        c = self.client(Server(TOKENS).url)
        r = self.do(c.reserve(stint.Reserve(path="/", user="alice", usage={"llm.total_tokens": 200}, expires_in=60)))
        self.assertTrue(r.allowed and r.ticket)
        self.assertTrue(self.do(r.extend(100)))
        self.assertFalse(self.do(r.extend(10000)))
        self.assertEqual(self.remaining(c), 700)
        used = stint.Commit(r.ticket, usage={"llm.total_tokens": 250}, model="large")
        self.assertEqual([self.do(c.commit(used)).repeated for _ in range(2)], [False, True])
        self.assertEqual(self.remaining(c), 750)
        all = self.do(c.reserve_batch([stint.Reserve(path="/", user="alice", cost=400)] * 2))
        self.assertEqual(sorted(r.allowed for r in all), [False, True])
        ticket = next(r.ticket for r in all if r.allowed)
        more, bad = self.do(c.extend_batch([stint.Extend(ticket, cost=1), stint.Extend("AAAA")]))
        self.assertTrue(more.allowed and bad.status == 400)
        receipt, bad = self.do(c.cancel_batch([stint.Cancel(more.ticket), stint.Cancel("AAAA")]))
        self.assertEqual((receipt.repeated, bad.status), (False, 400))
        receipt, bad = self.do(c.commit_batch([stint.Commit(more.ticket, cost=9), stint.Commit("AAAA", cost=1)]))
        self.assertEqual((receipt.repeated, bad.status, self.remaining(c)), (True, 400, 750))

    def test_reservation(self):
        c = self.client(Server(TOKENS).url)

        def reserve():
            return self.do(c.reserve(stint.Reserve(path="/", user="alice", cost=100)))

        self.do.with_(reserve(), lambda r: r.use(30))
        self.assertEqual(self.remaining(c), 970)
        self.do.with_(reserve(), lambda r: None)  # nothing is said: nothing was used
        self.assertEqual(self.remaining(c), 970)

        def fails(r, used):
            if used:
                r.use(usage={"llm.total_tokens": used})
            raise RuntimeError("the work has failed")

        for used in (0, 20):
            with self.assertRaisesRegex(RuntimeError, "the work"):
                self.do.with_(reserve(), lambda r: fails(r, used))
            self.assertEqual(self.remaining(c), 970 - used)
        with self.assertRaises(stint.CallError) as caught:
            self.do.with_(reserve(), lambda r: r.use(-1))
        self.assertEqual(caught.exception.field, "cost")
        denied = self.do(c.reserve(stint.Reserve(path="/", user="alice", cost=5000)))
        self.assertEqual((denied.allowed, denied.ticket, self.do(denied.settle())), (False, None, None))

    def test_token(self):
        url = Server(ONE + '[server.http]\ntokens = ["0123456789abcdef"]\n').url
        self.assertEqual(self.do(self.client(url, token="0123456789abcdef").check(ALICE)).remaining, 2)
        for token in (None, "another-0123456789"):
            with self.assertRaises(stint.CallError) as caught:
                self.do(self.client(url, token=token).check(ALICE))
            self.assertEqual(caught.exception.status, 401)
            self.assertNotIn("another", str(caught.exception))

    def test_tls(self):
        dir = os.environ["STINT_TLS"]
        url = Server(ONE + f'[server.http]\ntls_cert = "{dir}/tls.crt"\ntls_key = "{dir}/tls.key"\n').url.replace("http://127.0.0.1", "https://localhost")
        trusting = ssl.create_default_context(cafile=dir + "/tls.crt")
        c = self.client(url, ssl_context=trusting)
        self.assertEqual([self.do(c.check(ALICE)).remaining for _ in range(3)], [2, 1, 0])
        v = self.do(self.client(url).check(ALICE))  # which trusts others
        self.assertIn("CERTIFICATE_VERIFY_FAILED", str(v.failure))

    def test_killed_and_back(self):
        server, told = Server(), []
        c = self.client(server.url, breaker_interval=0.05, on_failure=lambda call, error: told.append((call, error)))
        self.do(c.check(ALICE))
        server.kill()
        v = self.do(c.check(ALICE))
        self.assertEqual((v.allowed, v.outcome, v.limits, v.decision_id), (True, "allowed", [], ""))
        self.assertIsInstance(v.failure, stint.UnreachableError)
        closed = self.do(self.client(server.url, fail_mode="closed").check(ALICE))
        self.assertEqual((closed.allowed, closed.outcome, closed.status, closed.response()[0]), (False, "unavailable", 503, 503))
        with self.assertRaises(stint.UnreachableError):
            self.do(self.client(server.url, fail_mode="error").check(ALICE))
        r = self.do(c.reserve(stint.Reserve(path="/", user="alice")))
        self.assertTrue(r.allowed and r.ticket is None and r.verdict.failure)
        self.assertTrue(self.do(c.take(stint.Ask("x", "1/1h"))).allowed)
        self.assertEqual([v.allowed for v in self.do(c.check_batch([ALICE, ALICE]))], [True, True])
        self.do(c.check(ALICE))
        self.until(lambda: c.stats.unreachable, "the breaker has not opened")
        self.assertIn("has not answered for a while", str(self.do(c.check(ALICE)).failure))
        self.assertEqual((c.stats.undecided, len(told), told[0][0]), (6, 6, "check"))
        server.restart()
        self.until(lambda: not self.do(c.check(ALICE)).failure, "the server is not asked again")
        self.assertFalse(c.stats.unreachable)

    def test_restarted(self):
        server = Server()
        c = self.client(server.url)
        self.do(c.check(ALICE))
        server.kill()
        server.restart()
        self.do.idle()
        self.assertIsNone(self.do(c.check(ALICE)).failure)  # and not sent on the connection of before

    def test_paused(self):
        server = Server()
        c = self.client(server.url, timeout=0.1, breaker_interval=0.05)
        self.until(lambda: not self.do(c.check(ALICE)).failure, "it answers in time")  # once it is warm
        server.pause()
        said = set()
        self.until(lambda: said.add(str(self.do(c.check(ALICE)).failure)) or c.stats.unreachable, "the breaker has not opened")
        self.assertIn("no answer in time", " ".join(said))
        began = time.monotonic()
        for _ in range(200):  # would wait for 20 s
            self.do(c.check(ALICE))
        self.assertLess(time.monotonic() - began, 10)
        server.resume()
        self.until(lambda: not self.do(c.check(ALICE)).failure, "the server is not asked again")

    def test_throttled_is_not_away(self):
        c = self.client(
            Server('[[rules]]\nname = "slow"\nmatch = { paths = ["/slow"] }\naction = "throttle"\nmax_delay = "30s"\nlimits = [{ name = "slow", limit = "1/10s burst=30 leaky_bucket" }]\n').url,
            timeout=0.8, breaker_failures=2,
        )
        for _ in range(4):
            self.do(c.check(stint.Check(path="/slow")))
            self.until(lambda: not c._core.breaker._probing, "the probe does not end")
        if c.stats.undecided < 2:
            self.fail("nothing was held")
        self.assertFalse(c.stats.unreachable)

    def test_thousand(self):
        c = self.client(Server(ONE.replace("3/", "300/")).url)
        if self.run_with is Threads:
            with concurrent.futures.ThreadPoolExecutor(100) as pool:
                got = list(pool.map(lambda _: c.check(ALICE), range(1000)))
        else:

            async def all():
                return await asyncio.gather(*(c.check(ALICE) for _ in range(1000)))

            got = self.do(all())
        self.assertEqual((sum(v.allowed for v in got), c.stats.undecided), (300, 0))

    def test_commit_is_repeated(self):
        server = Server(TOKENS)
        c = self.client(server.url, settle_timeout=PATIENCE)
        r = self.do(c.reserve(stint.Reserve(path="/", user="alice", cost=100)))
        server.pause()
        resume = threading.Timer(1.2, server.resume)  # the first attempt is over by then
        resume.start()
        r.use(40)
        self.do(r.settle())
        resume.join()
        self.assertEqual((self.remaining(c), c.stats.unsettled), (960, 0))

    def test_commit_is_given_up(self):
        server, told = Server(TOKENS), []
        c = self.client(server.url, settle_timeout=0.3, on_failure=lambda *what: told.append(what) or 1 / 0)
        r = self.do(c.reserve(stint.Reserve(path="/", user="alice", cost=100)))
        server.kill()
        with self.assertRaises(stint.UnreachableError), self.assertLogs("stint"):
            self.do(r.settle())
        with self.assertLogs("stint"):  # on_failure fails
            self.do.with_(r, lambda r: r.use(5))  # raises nothing
        self.assertEqual((c.stats.unsettled, [call for call, _ in told]), (2, ["cancel", "commit"]))

    def test_retry_after(self):
        server = self.false(problem(503, "later", "Retry-After: 1"), None, b"HTTP/1.1 502 Bad\r\n\r\n<html>", http(200, RECEIPT))
        c = self.client(server.url, settle_timeout=PATIENCE)
        self.do(c.commit(stint.Commit("x", cost=1)))
        times = [at for at, _, _ in server.calls]
        self.assertEqual(len(times), 4)
        self.assertGreaterEqual(times[1] - times[0], 1)
        late = self.false(problem(503, "later", "Retry-After: 60"))
        began = time.monotonic()
        with self.assertRaisesRegex(stint.CallError, "503: later"):
            self.do(self.client(late.url).cancel(stint.Cancel("x")))
        self.assertLess(time.monotonic() - began, 4)  # it does not wait for what is too late
        self.assertEqual(len(late.calls), 1)

    def test_sent_once(self):
        server = self.false(None)
        c = self.client(server.url)
        self.do(c.check(ALICE))
        self.do(c.reserve(stint.Reserve(path="/")))
        self.do(c.extend(stint.Extend("x")))
        self.do(c.take(stint.Ask("x", "1/1h")))
        self.assertEqual((len(server.calls), c.stats.undecided), (4, 4))

    def test_server_cannot_decide(self):
        for answer in (problem(503, "no database", "Retry-After: 1"), problem(500, "no database")):
            v = self.do(self.client(self.false(answer).url).check(ALICE))  # open, but the server has said that it must not pass
            self.assertEqual((v.allowed, v.outcome, v.reason), (False, "unavailable", "no database"))
        taken = self.do(self.client(self.false(problem(503, "no store")).url).take(stint.Ask("x", "1/1h")))
        self.assertTrue(taken.allowed and taken.failure)

    def test_answers(self):
        whole = b'{"allowed":true,"outcome":"later","retry_after":0,"decision_id":"x","limits":[],"later":1}'
        size = b"%x\r\n" % len(whole)
        for name, answer in {
            "as usual": http(200, whole), "with a notice": b"HTTP/1.1 100 Continue\r\n\r\n" + http(200, whole),
            "in chunks": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + size + whole + b"\r\n0\r\n\r\n",
            "in pieces": [b"HTTP/1.1 200 OK\r\nTransfer-Enc", b"oding: chunked\r\n\r\n" + size, whole + b"\r", b"\n0\r\nX: y\r\n", b"\r\n"],
            "without a length": b"HTTP/1.1 200 OK\r\n\r\n" + whole,
        }.items():
            c = self.client(self.false(answer).url)
            for _ in range(2):
                self.assertIsNone(self.do(c.check(ALICE)).failure, name)
        for name, answer in {
            "nothing": None, "no HTTP": b"SSH-2.0\r\n\r\n", "cut": http(200, whole)[:-5], "a page": http(200, b"<html>"), "a list": http(200, []),
            "no verdict": http(200, {"allowed": True}), "a wrong type": http(200, {**VERDICT, "allowed": "yes"}),
            "a proxy": http(502, b"<html>", kind="text/html"), "a bad chunk": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
            "endless": b"HTTP/1.1 200 OK\r\nX: " + b"x" * 100000, "a bad length": b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        }.items():
            v = self.do(self.client(self.false(answer).url, fail_mode="closed").check(ALICE))
            self.assertIsInstance(v.failure, stint.UnreachableError, name)
            self.assertFalse(v.allowed, name)
        for status in (302, 404):
            with self.assertRaisesRegex(stint.CallError, str(status)):
                self.do(self.client(self.false(http(status, b"")).url).check(ALICE))

    def test_drip(self):
        server = self.false([b"x"] * 1000)  # a byte every 20 ms
        began = time.monotonic()
        self.assertIsNotNone(self.do(self.client(server.url, timeout=0.1).check(ALICE)).failure)
        self.assertLess(time.monotonic() - began, 5)

    def test_process_ends(self):
        server = Server(TOKENS)
        program = """if True:
            import os, sys, stint
            with stint.Client(sys.argv[1], timeout=20).reserve(stint.Reserve(path="/", user="alice", cost=100)) as r:
                print(r.ticket, flush=True)
                os._exit(1)
        """
        ticket = subprocess.run([sys.executable, "-c", program, server.url], stdout=subprocess.PIPE, text=True).stdout.strip()
        c = self.client(server.url)
        self.assertEqual(self.remaining(c), 900)  # it stays charged, and whoever has the ticket can settle it
        self.do(c.commit(stint.Commit(ticket, cost=60)))
        self.assertEqual(self.remaining(c), 940)


class WithThreads(Both, unittest.TestCase):
    run_with = Threads

    def test_fork(self):
        c = self.client(Server().url)
        self.assertEqual(c.check(ALICE).remaining, 2)
        child = os.fork()
        if child == 0:
            os._exit(c.check(ALICE).remaining or 0)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 1)
        self.assertEqual(c.check(ALICE).remaining, 0)


class WithLoop(Both, unittest.TestCase):
    run_with = Loop

    def test_other_loop(self):
        c = stint.AsyncClient(Server().url, timeout=PATIENCE)

        async def check():
            return (await c.check(ALICE)).remaining

        async def last():
            async with c:
                return await check()

        self.assertEqual([asyncio.run(check()), asyncio.run(last())], [2, 1])

    def test_cancelled(self):
        server = Server()
        c = self.client(server.url)

        async def work():
            server.pause()
            call = asyncio.ensure_future(c.check(stint.Check(path="/", user="bob")))
            await asyncio.sleep(0.05)
            call.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await call
            server.resume()
            return await c.check(ALICE)  # and it does not get the answer for bob

        self.assertEqual(self.do(work()).remaining, 2)
