"""What the cases cannot say: forks, interrupts, and how the engine is found and shared."""

import asyncio
import concurrent.futures
import os
import signal
import tempfile
import threading
import unittest
from pathlib import Path
from unittest import mock

import holdfast
from holdfast import _core, _engine, _http, aio


class ProcessTest(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.url = "file://" + str(Path(directory.name) / "locks")

    def connect(self):
        locks = holdfast.connect(self.url)
        self.addCleanup(locks.close)
        return locks

    def in_child(self, work):
        """Does the work in a forked process, and wants it to return True."""
        child = os.fork()
        if child == 0:
            try:
                os._exit(0 if work() else 1)
            except BaseException:
                import traceback

                traceback.print_exc()
            os._exit(2)
        self.assertEqual(os.waitpid(child, 0)[1], 0)

    def test_fork(self):
        """A forked process holds nothing of its parent, has an engine of its own, and leaves its parent's alone."""
        locks = self.connect()
        with locks.mutex("a", ttl=3600) as lease:

            def child():
                if lease.valid() or lease.remaining() > 0:
                    return False
                for use in (lease.check, lease.release):
                    try:
                        use()
                    except holdfast.LockLost as e:
                        if e.cause != "forked":
                            return False
                    else:
                        return False
                with locks.mutex("b") as own:
                    held = own.valid() and own.check() > 0
                try:
                    locks.mutex("a", wait=0).acquire()
                except holdfast.LockHeld:
                    locks.close()
                    return held
                return False

            self.in_child(child)
            self.assertTrue(lease.valid())
            lease.check()
        with locks.mutex("a", wait=0):
            pass

    def test_fork_does_not_keep_a_lock(self):
        """What a process held is free when it has died, although a process that it has forked lives on."""
        locks = self.connect()
        read, write = os.pipe()
        holder = os.fork()
        if holder == 0:
            own = holdfast.connect(self.url)
            own.mutex("a", ttl=3600).acquire()
            if os.fork() == 0:
                os.write(write, str(os.getpid()).encode())
                signal.pause()
                os._exit(0)
            signal.pause()
        survivor = int(os.read(read, 100))
        try:
            os.kill(holder, signal.SIGKILL)
            os.waitpid(holder, 0)
            with locks.mutex("a", wait=100):
                pass
        finally:
            os.kill(survivor, signal.SIGKILL)
            os.close(read)
            os.close(write)

    def test_slow_start(self):
        """While the engine of a store starts, other stores can be used, and the process can be forked."""
        slow = self.url + "-slow"
        started, go = threading.Event(), threading.Event()
        await_start = _engine.Engine.await_start

        def wait(engine):
            if engine.store == slow:
                started.set()
                self.assertTrue(go.wait(100))
            await_start(engine)

        def use_slow():
            locks = holdfast.connect(slow)
            with locks.mutex("a"):
                pass
            locks.close()

        with mock.patch.object(_engine.Engine, "await_start", wait):
            user = threading.Thread(target=use_slow)
            user.start()
            self.assertTrue(started.wait(100))
            locks = self.connect()
            with locks.mutex("a"):
                pass
            self.in_child(lambda: not _engine._all)
            self.assertTrue(user.is_alive())
            go.set()
            user.join()

    def test_interrupted_wait(self):
        """A wait that is interrupted, by Ctrl-C for example, leaves nothing behind."""
        locks, others = self.connect(), self.connect()
        with locks.mutex("a", fair=True):
            main = threading.main_thread().ident

            def interrupt():
                while not others.show("a").waiters:
                    pass
                signal.pthread_kill(main, signal.SIGINT)

            thread = threading.Thread(target=interrupt)
            thread.start()
            with self.assertRaises(KeyboardInterrupt):
                locks.mutex("a", fair=True).acquire()
            thread.join()
            while others.show("a").waiters:
                pass
        with locks.mutex("a", fair=True, wait=0):
            pass

    def test_interrupt_at_the_grant(self):
        """An interrupt that comes when the lock was just granted releases it."""
        locks, others = self.connect(), self.connect()
        result = concurrent.futures.Future.result

        def interrupted(future, timeout=None):
            value = result(future, timeout)
            if isinstance(value, (holdfast.Lease, holdfast.Run)):
                raise KeyboardInterrupt
            return value

        with mock.patch.object(concurrent.futures.Future, "result", interrupted):
            with self.assertRaises(KeyboardInterrupt):
                locks.mutex("a", ttl=3600).acquire()
            with self.assertRaises(KeyboardInterrupt):
                locks.ledger("l", ttl=3600).begin("k")
        others.mutex("a", wait=100).acquire().release()
        with others.ledger("l").begin("k", wait=100):
            pass

    def test_one_object_in_two_blocks(self):
        """A lock object is in use from the start of its wait, so that no block releases the lease of another."""

        async def two_tasks():
            async with aio.connect(self.url) as locks:
                pool = locks.semaphore("pool", 2)
                entered = await asyncio.gather(pool.__aenter__(), pool.__aenter__(), return_exceptions=True)
                await pool.__aexit__(None, None, None)
                async with pool:
                    return entered

        first, second = asyncio.run(two_tasks())
        self.assertIsInstance(first, aio.Lease)
        self.assertIsInstance(second, holdfast.Invalid)

        locks = self.connect()
        pool = locks.semaphore("pool", 2)
        acquire = pool.acquire

        def acquire_in_use():
            with self.assertRaises(holdfast.Invalid):
                pool.__enter__()
            return acquire()

        with mock.patch.object(pool, "acquire", acquire_in_use), pool:
            pass
        with pool:
            pass

    def test_renew_answered_late(self):
        """What renew returns counts from its question."""

        async def renew(took):
            with (
                mock.patch.object(_http.Server, "call", mock.AsyncMock(return_value={"remaining_ms": 3000})),
                mock.patch.object(_core, "now", side_effect=[100.0, 100.0 + took]),
            ):
                return await aio.connect("unix:/nowhere").renew("h")

        self.assertAlmostEqual(asyncio.run(renew(1)), 1.999)
        with self.assertRaises(holdfast.LockLost):
            asyncio.run(renew(3))

    def test_close_while_the_engine_starts(self):
        """A client that is closed meanwhile leaves the engine."""

        async def close_meanwhile():
            locks, loop, join = aio.connect(self.url), asyncio.get_running_loop(), _engine.join

            def join_and_close(store):
                engine = join(store)
                asyncio.run_coroutine_threadsafe(locks.close(), loop).result()
                return engine

            with mock.patch.object(_engine, "join", join_and_close), self.assertRaises(holdfast.Invalid):
                await locks.list()

        asyncio.run(close_meanwhile())
        self.assertNotIn(self.url, _engine._engines)

    def test_iterator_in_the_thread_of_the_loop(self):
        """The end of an iterator does not wait, wherever it happens; everything else refuses to wait in that thread."""
        locks = self.connect()
        changes = locks.election("e").observe()
        next(changes)
        errors = []

        def callback(_):
            changes.close()
            try:
                locks.list()
            except holdfast.Invalid as e:
                errors.append(e)

        lease = locks.mutex("a").acquire()
        lease.on_lost(callback)
        locks.close()
        self.assertEqual(len(errors), 1)

    def test_callback_that_fails(self):
        """A callback that fails hides the loss from nobody."""
        locks = self.connect()
        lease = locks.mutex("a").acquire()
        told = []
        lease.on_lost(lambda _: told[0])
        lease.on_lost(told.append)
        with self.assertLogs("holdfast"):
            locks.close()
        self.assertEqual([e.cause for e in told], ["closed"])

    def test_released_by_the_server(self):
        """That the server takes the lock for released is a loss, unless this process has released it."""

        async def check():
            async with aio.connect(self.url) as locks:
                lease = await locks.mutex("a").acquire()
                lease._ask = mock.AsyncMock(side_effect=holdfast.Released("the connection was closed"))
                with self.assertRaises(holdfast.LockLost):
                    await lease.check()
                self.assertTrue(lease.lost.is_set())

        asyncio.run(check())

    def test_two_reports(self):
        """The second report of a run does not make the first one a loss."""

        async def report():
            async with aio.connect(self.url) as locks:
                run = await locks.ledger("l").begin("k")
                return run, await asyncio.gather(run.succeed(), run.succeed(), return_exceptions=True)

        run, (first, second) = asyncio.run(report())
        self.assertIsNone(first)
        self.assertIsInstance(second, holdfast.Released)
        self.assertFalse(run.lost.is_set())

    def test_shared_engine(self):
        """Clients of one store share an engine, and the last one ends it."""
        a, b = holdfast.connect(self.url), holdfast.connect(self.url)
        for locks in (a, b):
            with locks.mutex("a"):
                pass
        engine = _engine._engines[self.url]
        a.close()
        with b.mutex("a"):
            pass
        self.assertTrue(engine.is_alive())
        b.close()
        self.assertFalse(engine.is_alive())
        self.assertFalse(os.path.exists(os.path.dirname(engine.path)))

    def test_no_command(self):
        """Without a command the error says what can be done."""
        with mock.patch.dict(os.environ, {"PATH": "/nowhere"}), self.assertRaises(holdfast.EngineMissing) as raised:
            del os.environ["HOLDFAST_BIN"]
            self.connect().mutex("a").acquire()
        for word in ("HOLDFAST_BIN", "PATH", "https:", "holdfast-engine"):
            self.assertIn(word, str(raised.exception))

    def test_command_that_cannot_run(self):
        with mock.patch.dict(os.environ, {"HOLDFAST_BIN": "/dev/null"}), self.assertRaises(holdfast.EngineMissing):
            self.connect().mutex("a").acquire()

    def test_wrong_store(self):
        """The words of the engine are those of the error."""
        with self.assertRaisesRegex(holdfast.Invalid, "nosuch"), holdfast.connect("nosuch://x") as locks:
            locks.list()


if __name__ == "__main__":
    unittest.main()
