package redlatch.interop;

import static java.util.concurrent.TimeUnit.MILLISECONDS;

import org.redisson.api.RPermitExpirableSemaphore;

/** The operations of the semaphore with leased permits. A lease of -1 never ends; a permit is named by its id. */
final class PermitVerbs {
    private PermitVerbs() {
    }

    static Object run(RPermitExpirableSemaphore permits, String operation, Tokens args) throws Exception {
        switch (operation) {
            case "acquire" -> {
                if (!args.hasNext()) {
                    return permits.acquire();
                }
                long leaseMs = args.number();
                args.end();
                return permits.acquire(leaseMs, MILLISECONDS);
            }
            case "tryAcquire" -> {
                args.end();
                return permits.tryAcquire();
            }
            case "tryAcquireWait" -> {
                long waitMs = args.number();
                long leaseMs = args.numberOr(-1);
                args.end();
                return permits.tryAcquire(waitMs, leaseMs, MILLISECONDS);
            }
            case "release" -> {
                String id = args.text();
                args.end();
                permits.release(id);
                return null;
            }
            case "tryRelease" -> {
                String id = args.text();
                args.end();
                return permits.tryRelease(id);
            }
            case "available" -> {
                args.end();
                return permits.availablePermits();
            }
            case "trySetPermits" -> {
                int count = args.count();
                args.end();
                return permits.trySetPermits(count);
            }
            case "addPermits" -> {
                int count = args.count();
                args.end();
                permits.addPermits(count);
                return null;
            }
            case "updateLeaseTime" -> {
                String id = args.text();
                long leaseMs = args.number();
                args.end();
                return permits.updateLeaseTime(id, leaseMs, MILLISECONDS);
            }
            default -> {
                return Verbs.objectOperation(permits, operation, args);
            }
        }
    }
}
