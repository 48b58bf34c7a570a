package redlatch.interop;

import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;
import org.redisson.config.BaseConfig;
import org.redisson.config.Config;

/** What Redisson 3.15.1 lacks: each request for it is an error, so that no test passes by doing nothing. */
final class Release {
    private Release() {
    }

    static RLock lock(RedissonClient client, String kind, String name) {
        throw new UnsupportedOperationException("Redisson 3.15.1 has no lock of the kind " + kind);
    }

    static Object operation(Object object, String operation, Tokens args) {
        throw new UnsupportedOperationException("Redisson 3.15.1 has no operation " + operation + " for this object");
    }

    static void configure(Config config, BaseConfig<?> section, String key, String value) {
        switch (key) {
            case "username" -> section.setUsername(value);
            case "password" -> section.setPassword(value);
            case "retryMs" -> section.setRetryInterval(Integer.parseInt(value));
            default -> throw new UnsupportedOperationException("Redisson 3.15.1 has no option " + key);
        }
    }
}
