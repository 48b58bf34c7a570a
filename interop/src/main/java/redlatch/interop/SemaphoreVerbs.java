package redlatch.interop;

import static java.util.concurrent.TimeUnit.MILLISECONDS;

import org.redisson.api.RSemaphore;

/** The operations of the counting semaphore. Waits are milliseconds. */
final class SemaphoreVerbs {
    private SemaphoreVerbs() {
    }

    static Object run(RSemaphore semaphore, String operation, Tokens args) throws Exception {
        switch (operation) {
            case "acquire" -> {
                int permits = args.countOr(1);
                args.end();
                semaphore.acquire(permits);
                return null;
            }
            case "tryAcquire" -> {
                int permits = args.countOr(1);
                args.end();
                return semaphore.tryAcquire(permits);
            }
            case "tryAcquireWait" -> {
                int permits = args.count();
                long waitMs = args.number();
                args.end();
                return semaphore.tryAcquire(permits, waitMs, MILLISECONDS);
            }
            case "release" -> {
                int permits = args.countOr(1);
                args.end();
                semaphore.release(permits);
                return null;
            }
            case "available" -> {
                args.end();
                return semaphore.availablePermits();
            }
            case "drain" -> {
                args.end();
                return semaphore.drainPermits();
            }
            case "trySetPermits" -> {
                int permits = args.count();
                args.end();
                return semaphore.trySetPermits(permits);
            }
            case "addPermits" -> {
                int permits = args.count();
                args.end();
                semaphore.addPermits(permits);
                return null;
            }
            default -> {
                return Verbs.objectOperation(semaphore, operation, args);
            }
        }
    }
}
