package redlatch.interop;

import static java.util.concurrent.TimeUnit.MILLISECONDS;

import java.time.Duration;
import java.util.List;

import org.redisson.api.RFencedLock;
import org.redisson.api.RLock;
import org.redisson.api.RPermitExpirableSemaphore;
import org.redisson.api.RRateLimiter;
import org.redisson.api.RSemaphore;
import org.redisson.api.RedissonClient;
import org.redisson.api.ratelimiter.RateLimiterArgs;
import org.redisson.config.BaseConfig;
import org.redisson.config.ClusterServersConfig;
import org.redisson.config.Config;
import org.redisson.config.ConstantDelay;
import org.redisson.config.ShardedSubscriptionMode;

/** What the newest Redisson has and 3.15.1 lacks. */
final class Release {
    private Release() {
    }

    static RLock lock(RedissonClient client, String kind, String name) {
        return switch (kind) {
            case "fenced" -> client.getFencedLock(name);
            case "nonreentrant" -> client.getNonReentrantLock(name);
            case "nonreentrantfair" -> client.getNonReentrantFairLock(name);
            default -> throw new IllegalArgumentException("unknown kind " + kind);
        };
    }

    static Object operation(Object object, String operation, Tokens args) throws Exception {
        if (object instanceof RFencedLock lock) {
            return fenced(lock, operation, args);
        }
        if (object instanceof RSemaphore semaphore) {
            return semaphore(semaphore, operation, args);
        }
        if (object instanceof RPermitExpirableSemaphore permits) {
            return permits(permits, operation, args);
        }
        if (object instanceof RRateLimiter limiter) {
            return limiter(limiter, operation, args);
        }
        throw unknown(operation);
    }

    private static Object fenced(RFencedLock lock, String operation, Tokens args) {
        switch (operation) {
            case "getToken" -> {
                args.end();
                return lock.getToken();
            }
            case "lockAndGetToken" -> {
                if (!args.hasNext()) {
                    return lock.lockAndGetToken();
                }
                long leaseMs = args.number();
                args.end();
                return lock.lockAndGetToken(leaseMs, MILLISECONDS);
            }
            case "tryLockAndGetToken" -> {
                if (!args.hasNext()) {
                    return lock.tryLockAndGetToken();
                }
                long waitMs = args.number();
                long leaseMs = args.number();
                args.end();
                return lock.tryLockAndGetToken(waitMs, leaseMs, MILLISECONDS);
            }
            default -> throw unknown(operation);
        }
    }

    private static Object semaphore(RSemaphore semaphore, String operation, Tokens args) {
        switch (operation) {
            case "releaseIfExists" -> {
                int permits = args.countOr(1);
                args.end();
                return semaphore.releaseIfExists(permits);
            }
            case "trySetPermitsTtl" -> {
                int permits = args.count();
                long ttlMs = args.number();
                args.end();
                return semaphore.trySetPermits(permits, Duration.ofMillis(ttlMs));
            }
            default -> throw unknown(operation);
        }
    }

    private static Object permits(RPermitExpirableSemaphore permits, String operation, Tokens args) throws Exception {
        switch (operation) {
            case "acquireMany" -> {
                int count = args.count();
                long leaseMs = args.numberOr(-1);
                args.end();
                return permits.acquire(count, leaseMs, MILLISECONDS);
            }
            case "tryAcquireMany" -> {
                int count = args.count();
                if (!args.hasNext()) {
                    return permits.tryAcquire(count);
                }
                long waitMs = args.number();
                long leaseMs = args.number();
                args.end();
                return permits.tryAcquire(count, waitMs, leaseMs, MILLISECONDS);
            }
            case "releaseMany" -> {
                permits.release(ids(args));
                return null;
            }
            case "tryReleaseMany" -> {
                return permits.tryRelease(ids(args));
            }
            case "acquired" -> {
                args.end();
                return permits.acquiredPermits();
            }
            case "permits" -> {
                args.end();
                return permits.getPermits();
            }
            case "setPermits" -> {
                int count = args.count();
                args.end();
                permits.setPermits(count);
                return null;
            }
            case "getLeaseTime" -> {
                String id = args.text();
                args.end();
                return permits.getLeaseTime(id);
            }
            default -> throw unknown(operation);
        }
    }

    private static List<String> ids(Tokens args) {
        List<String> ids = List.of(args.text().split(","));
        args.end();
        return ids;
    }

    private static Object limiter(RRateLimiter limiter, String operation, Tokens args) {
        switch (operation) {
            case "release" -> {
                long permits = args.numberOr(1);
                args.end();
                limiter.release(permits);
                return null;
            }
            case "trySetRateKeepAlive" -> {
                var mode = RateVerbs.mode(args.text());
                long rate = args.number();
                Duration interval = Duration.ofMillis(args.number());
                Duration keepAlive = Duration.ofMillis(args.number());
                args.end();
                return limiter.trySetRate(mode, rate, interval, keepAlive);
            }
            case "setRateKeepAlive" -> {
                var mode = RateVerbs.mode(args.text());
                long rate = args.number();
                Duration interval = Duration.ofMillis(args.number());
                Duration keepAlive = Duration.ofMillis(args.number());
                args.end();
                limiter.setRate(mode, rate, interval, keepAlive);
                return null;
            }
            case "updateRate" -> {
                var mode = RateVerbs.mode(args.text());
                long rate = args.number();
                Duration interval = Duration.ofMillis(args.number());
                args.end();
                return limiter.updateRate(RateLimiterArgs.of(mode, rate, interval));
            }
            default -> throw unknown(operation);
        }
    }

    private static IllegalArgumentException unknown(String operation) {
        return new IllegalArgumentException("unknown operation " + operation);
    }

    static void configure(Config config, BaseConfig<?> section, String key, String value) {
        switch (key) {
            case "username" -> config.setUsername(value);
            case "password" -> config.setPassword(value);
            case "retryMs" -> section.setRetryDelay(new ConstantDelay(Duration.ofMillis(Long.parseLong(value))));
            case "fairWaitMs" -> config.setFairLockWaitTimeout(Long.parseLong(value));
            case "watchdogBatch" -> config.setLockWatchdogBatchSize(Integer.parseInt(value));
            case "slavesSyncMs" -> config.setSlavesSyncTimeout(Long.parseLong(value));
            case "checkSynced" -> config.setCheckLockSyncedSlaves(Boolean.parseBoolean(value));
            case "sharded" -> sharded(section).setShardedSubscriptionMode(
                    ShardedSubscriptionMode.valueOf(value.toUpperCase(java.util.Locale.ROOT)));
            default -> throw new IllegalArgumentException("unknown option " + key);
        }
    }

    private static ClusterServersConfig sharded(BaseConfig<?> section) {
        if (section instanceof ClusterServersConfig cluster) {
            return cluster;
        }
        throw new IllegalArgumentException("only a cluster has sharded subscriptions");
    }
}
