"""The middlewares, in front of applications as their servers call them."""

import asyncio
import http.client
import threading
import unittest
import wsgiref.simple_server
import wsgiref.validate

import stint
import stint.asgi
import stint.wsgi
from world import PATIENCE, Server

RULES = """
[identity]
trusted_proxies = ["127.0.0.1"]
user_header     = "X-User-ID"

[[rules]]
name     = "secret"
match    = { paths = ["/secret/**"] }
action   = "block"

[[rules]]
name     = "users"
match    = { paths = ["/a b/**"] }
count_by = ["user"]
limits   = [{ name = "hourly", limit = "2/1000h fixed_window" }]
"""


class WSGI(unittest.TestCase):
    def test_requests(self):
        seen = []

        def app(environ, start_response):
            seen.append(environ["stint.verdict"])
            start_response("200 OK", [("Content-Type", "text/plain")])
            return [b"served"]

        client = stint.Client(Server(RULES).url, timeout=PATIENCE)
        self.addCleanup(client.close)
        wrapped = wsgiref.validate.validator(stint.wsgi.Middleware(wsgiref.validate.validator(app), client))
        with wsgiref.simple_server.make_server("127.0.0.1", 0, wrapped, handler_class=Quiet) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            self.addCleanup(server.shutdown)

            def ask(path, method="GET", user="alice"):
                connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=PATIENCE)
                connection.request(method, path, headers={"X-User-ID": user})
                answer = connection.getresponse()
                body = answer.read()
                connection.close()
                return answer.status, body, answer.headers

            for left in "10":
                status, body, headers = ask("/a%20b/%E4?q=1")
                self.assertEqual((status, body, headers["X-RateLimit-Remaining"]), (200, b"served", left))
            status, body, headers = ask("/a%20b/")
            self.assertEqual((status, headers["Content-Type"]), (429, "application/problem+json"))
            self.assertIn(b"used up", body)
            self.assertTrue(int(headers["Retry-After"]) > 0)
            self.assertEqual(ask("/a%20b/", method="HEAD")[:2], (429, b""))
            self.assertEqual(ask("/a%20b/", user="bob")[0], 200)
            self.assertEqual([ask(path)[0] for path in ("/secret/x", "//secret/x", "/x/../secret/x", "/%73ecret/x")], [403] * 4)
            self.assertEqual(ask("/" + "x" * 9000)[0], 400)
            self.assertEqual(len(seen), 3)


class Quiet(wsgiref.simple_server.WSGIRequestHandler):
    def log_message(self, *_):
        pass


class ASGI(unittest.TestCase):
    def ask(self, client, path, kind="http", peer=("127.0.0.1", 1234), **scope):
        """Sends a request as a server would, and returns what it gets back."""
        sent, seen = [], []

        async def app(scope, receive, send):
            seen.append(scope)
            if kind == "lifespan":
                return
            start = {"http": "http.response.start", "websocket": "websocket.accept"}[kind]
            await send({"type": start, "status": 200, "headers": [(b"x-app", b"1")]})
            await send({"type": "http.response.body", "body": b"served"})

        async def receive():
            return {"type": "websocket.connect"}

        async def send(message):
            sent.append(message)

        scope = {"type": kind, "method": "GET", "path": path, "headers": [(b"x-user-id", b"alice")], "client": peer, **scope}
        asyncio.run(self.run_(stint.asgi.Middleware(app, client), scope, receive, send, client))
        return sent, seen

    async def run_(self, app, scope, receive, send, client):
        await app(scope, receive, send)
        await client.close()

    def test_requests(self):
        client = stint.AsyncClient(Server(RULES).url, timeout=PATIENCE)
        sent, seen = self.ask(client, "/a b/ä")
        headers = dict(sent[0]["headers"])
        self.assertEqual((sent[0]["status"], headers[b"x-app"], headers[b"x-ratelimit-remaining"]), (200, b"1", b"1"))
        self.assertEqual(seen[0]["stint.verdict"].rule, "users")
        sent, _ = self.ask(client, "/a b/", kind="websocket")
        self.assertEqual(dict(sent[0]["headers"])[b"x-ratelimit-remaining"], b"0")
        sent, seen = self.ask(client, "/a b/")
        self.assertEqual((sent[0]["status"], dict(sent[0]["headers"])[b"content-type"], seen), (429, b"application/problem+json", []))
        self.assertIn(b"used up", sent[1]["body"])
        self.assertEqual(self.ask(client, "/a b/", method="HEAD")[0][1]["body"], b"")
        self.assertEqual(self.ask(client, "/a b/", kind="websocket")[0], [{"type": "websocket.close", "code": 1008}])
        sent, _ = self.ask(client, "/a b/", kind="websocket", extensions={"websocket.http.response": {}})
        self.assertEqual((sent[0]["type"], sent[0]["status"]), ("websocket.http.response.start", 429))
        self.assertEqual(self.ask(client, "/" + "x" * 9000)[0][0]["status"], 400)
        self.assertEqual(len(self.ask(client, "/", kind="lifespan")[1]), 1)
        self.assertEqual(self.ask(client, "/", peer=None, headers=[])[0][0]["status"], 200)
        self.assertEqual(self.ask(client, "/", peer=("/run/socket", None))[0][0]["status"], 200)

    def test_unaccepted(self):
        verdict = stint.Verdict(True, "allowed", 0, "x", [], unaccepted="expired")

        class Client:
            async def check(self, _):
                return verdict

            async def close(self):
                pass

        _, seen = self.ask(Client(), "/", headers=[(b"authorization", b"Bearer x"), (b"x", b"y")])
        self.assertEqual(seen[0]["headers"], [(b"x", b"y")])
