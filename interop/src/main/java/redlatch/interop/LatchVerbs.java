package redlatch.interop;

import static java.util.concurrent.TimeUnit.MILLISECONDS;

import org.redisson.api.RCountDownLatch;

/** The operations of the count-down latch. Waits are milliseconds. */
final class LatchVerbs {
    private LatchVerbs() {
    }

    static Object run(RCountDownLatch latch, String operation, Tokens args) throws Exception {
        switch (operation) {
            case "await" -> {
                args.end();
                latch.await();
                return null;
            }
            case "awaitFor" -> {
                long waitMs = args.number();
                args.end();
                return latch.await(waitMs, MILLISECONDS);
            }
            case "countDown" -> {
                args.end();
                latch.countDown();
                return null;
            }
            case "getCount" -> {
                args.end();
                return latch.getCount();
            }
            case "trySetCount" -> {
                long count = args.number();
                args.end();
                return latch.trySetCount(count);
            }
            default -> {
                return Verbs.objectOperation(latch, operation, args);
            }
        }
    }
}
