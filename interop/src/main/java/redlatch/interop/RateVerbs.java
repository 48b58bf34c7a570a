package redlatch.interop;

import static java.util.concurrent.TimeUnit.MILLISECONDS;

import java.util.List;

import org.redisson.api.RRateLimiter;
import org.redisson.api.RateIntervalUnit;
import org.redisson.api.RateLimiterConfig;
import org.redisson.api.RateType;

/** The operations of the rate limiter. The mode is {@code overall} or {@code client}; intervals are milliseconds. */
final class RateVerbs {
    private RateVerbs() {
    }

    static RateType mode(String word) {
        return switch (word) {
            case "overall" -> RateType.OVERALL;
            case "client" -> RateType.PER_CLIENT;
            default -> throw new IllegalArgumentException("unknown mode " + word);
        };
    }

    // The form with a unit is the only one that both releases have; the newer one calls it deprecated.
    @SuppressWarnings("deprecation")
    static Object run(RRateLimiter limiter, String operation, Tokens args) throws Exception {
        switch (operation) {
            case "trySetRate" -> {
                RateType mode = mode(args.text());
                long rate = args.number();
                long intervalMs = args.number();
                args.end();
                return limiter.trySetRate(mode, rate, intervalMs, RateIntervalUnit.MILLISECONDS);
            }
            case "setRate" -> {
                RateType mode = mode(args.text());
                long rate = args.number();
                long intervalMs = args.number();
                args.end();
                limiter.setRate(mode, rate, intervalMs, RateIntervalUnit.MILLISECONDS);
                return null;
            }
            case "acquire" -> {
                long permits = args.numberOr(1);
                args.end();
                limiter.acquire(permits);
                return null;
            }
            case "tryAcquire" -> {
                long permits = args.numberOr(1);
                args.end();
                return limiter.tryAcquire(permits);
            }
            case "tryAcquireWait" -> {
                long permits = args.number();
                long waitMs = args.number();
                args.end();
                return limiter.tryAcquire(permits, waitMs, MILLISECONDS);
            }
            case "available" -> {
                args.end();
                return limiter.availablePermits();
            }
            case "config" -> {
                args.end();
                RateLimiterConfig config = limiter.getConfig();
                return List.of(config.getRateType() == RateType.OVERALL ? "overall" : "client", config.getRate(),
                        config.getRateInterval());
            }
            default -> {
                return Verbs.objectOperation(limiter, operation, args);
            }
        }
    }
}
