//! Stores a file and reads it back.
//!
//! ```sh
//! SEALSTONE_PASSWORD=… \
//!     cargo run --example put_get -- HOST:3270 FINGERPRINT USER LOCAL-FILE /REMOTE/PATH
//! ```

use std::process::ExitCode;

use sealstone_client::{Client, GetOptions, PutOptions};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<ExitCode, Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [server, pin, user, local, remote] = arguments.as_slice() else {
        return Ok(ExitCode::from(2));
    };
    let password = std::env::var("SEALSTONE_PASSWORD")?;
    let client = Client::connect(server, pin.parse()?, user, password.as_bytes()).await?;
    let same = there_and_back(&client, local, remote).await?;
    client.logout().await?;
    Ok(if same { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Whether the bytes that were read are those that were stored.
pub(crate) async fn there_and_back(
    client: &Client,
    local: &str,
    remote: &str,
) -> Result<bool, Box<dyn std::error::Error>> {
    let stat = client.put_file(remote, local.as_ref(), PutOptions::default()).await?;
    let mut back = Vec::new();
    client.get(remote, &mut back, GetOptions::default()).await?;
    Ok(back == tokio::fs::read(local).await? && stat.size == back.len() as u64)
}
