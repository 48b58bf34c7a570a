//! `redlatch demo`: the flash sale, through a script, through a lock, and without protection.

use super::Context;
use crate::{
    args::{DemoArgs, DemoWorkerArgs, Way},
    demo::{sale, worker},
    exit::{self, Failure},
    output, store,
};

pub(super) fn demo(args: &DemoArgs, context: &Context) -> Result<u8, Failure> {
    let settings = context.settings()?;
    let talk = context.talk;
    talk.say_plain(format_args!("{} processes buy {} items", args.workers, args.items));
    store::with_client(&settings, async |client| {
        // Every demo uses the same stocks; this keeps two of them from selling each other's items.
        let shop = client.lock("redlatch-demo").lock().await?;
        let mut rows = Vec::new();
        for way in [Way::Script, Way::Lock, Way::Nothing] {
            let stock = format!("redlatch-demo:{}", sale::title(way).replace(' ', "-"));
            client.set_stock(&stock, args.items).await?;
            let sale = sale::sell(&settings, way, &stock, args.items, args.workers, talk);
            let row = shop.protect(sale).await;
            client.remove_stock(&stock).await?;
            rows.push(row??);
        }
        shop.unlock().await?;
        output::list(output::format(args.output, &settings), &rows)?;
        if rows.iter().any(|row| row.is_broken(args.items)) {
            return Err(Failure::internal("a protected sale did not sell exactly what there was"));
        }
        Ok(exit::OK)
    })
}

pub(super) fn worker(args: &DemoWorkerArgs, context: &Context) -> Result<u8, Failure> {
    let settings = context.settings()?;
    store::with_client(&settings, async |client| {
        worker::buy_all(client, args.way, &args.stock).await?;
        Ok(exit::OK)
    })
}
