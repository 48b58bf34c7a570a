package redlatch.interop;

import static java.util.concurrent.TimeUnit.MILLISECONDS;

import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicLong;

import org.redisson.api.RLock;

/** The operations of every kind of lock. Leases and waits are milliseconds; a lease of -1 means the watchdog. */
final class LockVerbs {
    private LockVerbs() {
    }

    static Object run(RLock lock, String operation, Tokens args) throws Exception {
        switch (operation) {
            case "lock" -> {
                args.end();
                lock.lock();
                return null;
            }
            case "lockLease" -> {
                long leaseMs = args.number();
                args.end();
                lock.lock(leaseMs, MILLISECONDS);
                return null;
            }
            case "lockInterruptibly" -> {
                args.end();
                lock.lockInterruptibly();
                return null;
            }
            case "lockInterruptiblyLease" -> {
                long leaseMs = args.number();
                args.end();
                lock.lockInterruptibly(leaseMs, MILLISECONDS);
                return null;
            }
            case "tryLock" -> {
                args.end();
                return lock.tryLock();
            }
            case "tryLockWait" -> {
                long waitMs = args.number();
                if (!args.hasNext()) {
                    // Not the same as a lease of -1: the fair lock converts its wait differently here.
                    return lock.tryLock(waitMs, MILLISECONDS);
                }
                long leaseMs = args.number();
                args.end();
                return lock.tryLock(waitMs, leaseMs, MILLISECONDS);
            }
            case "unlock" -> {
                args.end();
                lock.unlock();
                return null;
            }
            case "forceUnlock" -> {
                args.end();
                return lock.forceUnlock();
            }
            case "isLocked" -> {
                args.end();
                return lock.isLocked();
            }
            case "isHeldByMe" -> {
                args.end();
                return lock.isHeldByCurrentThread();
            }
            case "isHeldByThread" -> {
                long threadId = args.number();
                args.end();
                return lock.isHeldByThread(threadId);
            }
            case "holdCount" -> {
                args.end();
                return lock.getHoldCount();
            }
            case "ttl" -> {
                args.end();
                return lock.remainTimeToLive();
            }
            case "turns" -> {
                int threads = args.count();
                long forMs = args.number();
                args.end();
                return turns(lock, threads, forMs);
            }
            default -> {
                return asyncOperation(lock, operation, args);
            }
        }
    }

    /** Many threads take the lock and give it back for a while. Gives the grants a second, a quarter of the time to warm up left out. */
    private static long turns(RLock lock, int threads, long forMs) throws InterruptedException {
        AtomicLong grants = new AtomicLong();
        AtomicBoolean stop = new AtomicBoolean();
        Thread[] workers = new Thread[threads];
        for (int at = 0; at < threads; at++) {
            workers[at] = new Thread(() -> {
                while (!stop.get()) {
                    lock.lock();
                    grants.incrementAndGet();
                    lock.unlock();
                }
            });
            workers[at].start();
        }
        Thread.sleep(forMs / 4);
        long before = grants.get();
        long begun = System.nanoTime();
        Thread.sleep(forMs - forMs / 4);
        long counted = grants.get() - before;
        long tookNs = System.nanoTime() - begun;
        stop.set(true);
        for (Thread worker : workers) {
            worker.join();
        }
        return Math.round(counted * 1e9 / tookNs);
    }

    /** The asynchronous twins, whose waiters are callbacks and whose owner is a number that the caller chooses. */
    private static Object asyncOperation(RLock lock, String operation, Tokens args) throws Exception {
        switch (operation) {
            case "lockAsync" -> {
                long owner = args.number();
                long leaseMs = args.number();
                args.end();
                lock.lockAsync(leaseMs, MILLISECONDS, owner).get();
                return null;
            }
            case "tryLockAsync" -> {
                long owner = args.number();
                long waitMs = args.number();
                long leaseMs = args.number();
                args.end();
                return lock.tryLockAsync(waitMs, leaseMs, MILLISECONDS, owner).get();
            }
            case "unlockAsync" -> {
                long owner = args.number();
                args.end();
                lock.unlockAsync(owner).get();
                return null;
            }
            default -> {
                return Verbs.objectOperation(lock, operation, args);
            }
        }
    }
}
